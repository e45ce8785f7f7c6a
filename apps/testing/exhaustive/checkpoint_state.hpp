// The state of one run's checkpointer in the search (checkpoint_search.hpp) as one value: the
// machine, its disk, what is in flight and what was reported; and the moves that may follow.
#pragma once

#include "actors/checkpoint_machine.hpp"
#include "apps/testing/exhaustive/checkpoint_disk.hpp"
#include "apps/testing/exhaustive/checkpoint_search.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::testing {

enum class checkpoint_move : std::uint8_t {
  offer,           ///< rank 0's next snapshot
  offer_late,      ///< a late one of an older generation
  commit,          ///< of the next step, received at once
  new_generation,  ///< goes on from the last committed step
  fall_back,       ///< the same, from the newest checkpoint that was reported: all ranks were lost
  flush,           ///< the run ends; no snapshot and no commit follows
  answer,          ///< the operation in flight is done
  refuse,          ///< it fails, and nothing is done
  fail_to_sync     ///< it fails in its fsync
};

/// A value. `wrong` is empty while all properties hold.
class checkpoint_state {
public:
  /// A run begins with what is on the disk, from `resumed` (0: from the beginning).
  checkpoint_state(const checkpoint_search& options, std::int64_t run, simulated_disk disk,
                   std::int64_t resumed, std::string how);

  void moves(std::vector<checkpoint_move>& to) const;
  void make(checkpoint_move what);
  /// Checks that late messages change nothing.
  void receive_late();
  /// Checks a state without further moves.
  void check_end();
  /// Checks the disk that a crash left; sets `wrong`.
  void look_at(const simulated_disk& left, const std::string& how);
  /// Commits and offers the next step; checks it after all answers, when nothing failed.
  void take_next_step();
  void check_next_step();

  std::uint64_t digest() const;
  /// Digest of what a crash may leave, and of what it is compared with.
  std::uint64_t crash_digest() const;
  std::optional<storage_op> next_operation() const;
  const simulated_disk& disk() const { return disk_; }
  std::int64_t run() const { return run_; }
  /// It has reported a checkpoint.
  bool has_written() const { return written_ > 0; }
  const std::string& wrong() const { return wrong_; }
  std::string way() const;

private:
  struct line {
    std::string text;
    std::shared_ptr<const line> before;
  };
  struct held_snapshot {
    std::uint64_t ticket = 0;
    checkpoint_origin of;
  };

  void object(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }
  void note(std::string text);
  void feed(const checkpointing::event& what);
  void take(const checkpointing::action& a);
  void offer(const checkpoint_origin& of);
  void commit();
  void answer(storage_fault::kind fault);
  void written(const checkpointing::written& what);
  void look_at_kept();
  void check_rest();
  bool is_committed(const checkpoint_origin& of) const;
  std::uint64_t committed_by(std::int64_t step) const;
  std::int64_t fall_back_to() const;
  void begin_generation();
  std::vector<std::int64_t> keep() const;

  const checkpoint_search* options_;
  std::int64_t run_;
  checkpoint_machine machine_;
  simulated_disk disk_;
  std::uint64_t disk_history_;
  std::optional<checkpoint_origin> found_;  ///< on the disk, at the start
  std::optional<checkpointing::store> in_flight_;
  checkpoint_origin open_;  ///< the snapshot that is being written
  std::vector<held_snapshot> held_;
  std::int64_t last_;  ///< step of the run
  std::int64_t resumed_;
  std::uint64_t generation_ = 1;
  std::int64_t offered_;
  std::int64_t committed_;
  std::vector<std::uint64_t> by_;  ///< generation that committed each step after `resumed_`
  std::vector<checkpoint_origin> given_up_;  ///< were committed; then all ranks were lost
  std::optional<checkpoint_origin> late_;    ///< in transit
  std::int64_t written_ = 0;                 ///< the newest that was reported; 0: none
  std::uint64_t written_by_ = 0;             ///< its generation
  std::vector<std::int64_t> kept_;           ///< what the policy has to keep
  bool exact_ = true;          ///< the disk follows from the policy: all could be read and removed
  std::uint64_t last_by_ = 0;  ///< generation that offered the last step; 0: none
  std::uint64_t tickets_ = 0;
  std::uint32_t failures_ = 0;
  bool flushing_ = false;
  bool flushed_ = false;
  std::shared_ptr<const line> way_;
  std::string wrong_;
};

}  // namespace troupe::testing
