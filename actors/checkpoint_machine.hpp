// How checkpoints are written: events in, actions out (checkpoint_events.hpp). A regular value
// without CAF, clocks, threads or bytes; actors/checkpointer.cpp executes its actions, one storage
// operation at a time.
//
// - A checkpoint is written into `.step-N.tmp`, its commit file last, synced, renamed to `step-N`
//   and synced again. Only then `latest` is made to name it. When that is durable, it is reported
//   (`written`), and then the checkpoints that the policy does not keep are removed (renamed to a
//   hidden name first).
// - So after a crash or a loss of power at any operation, `latest`, or the newest good checkpoint,
//   is a whole one, once there was one. A write that fails leaves only its report.
// - Nothing is written before its step is committed: until then a step may turn out not to have
//   happened. When the machine is flushed, or a newer generation begins, it drops the rest.
// - At its start the machine finds the checkpoints of a resumed run, and removes what a crash left
//   half-written or half-removed. Checkpoints of steps after the one that the run resumed from
//   belong to a branch that was given up. They stay until the first commit of the new branch.
#pragma once

#include "actors/checkpoint_events.hpp"
#include "actors/deciders.hpp"
#include "troupe/options.hpp"

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// See the top of the file. These snapshots wait for the disk: the newest; the best of those that
/// keep_best would keep, at most min(keep_best, `waiting_best_limit`); and the newest that is
/// `must`. A newer snapshot replaces every other one; the next `written` counts it. The same wait
/// for their commit, and the oldest one.
class checkpoint_machine {
public:
  struct settings {
    checkpoint_policy policy;
    std::string folder;                   ///< the run's `checkpoints`
    std::string commit_file;              ///< name of each checkpoint's last file
    std::optional<std::int64_t> resumed;  ///< the step gone on from; none: a new run, which leaves
                                          ///< checkpoints it finds alone
    friend bool operator==(const settings&, const settings&) = default;
  };

  explicit checkpoint_machine(settings given);

  std::vector<checkpointing::action> on(const checkpointing::event& what);

  checkpointing::phase phase() const { return phase_; }
  /// Durable checkpoints of this run's branch, by step.
  const std::vector<kept_checkpoint>& kept() const { return kept_; }

  friend bool operator==(const checkpoint_machine&, const checkpoint_machine&) = default;
  std::uint64_t digest() const;
  friend std::ostream& operator<<(std::ostream& out, const checkpoint_machine& machine);

private:
  using actions = std::vector<checkpointing::action>;

  void handle(const checkpointing::begin&, actions& out);
  void handle(const checkpointing::offered& e, actions& out);
  void handle(const checkpointing::committed& e, actions& out);
  void handle(const checkpointing::opened& e, actions& out);
  void handle(const checkpointing::answered& e, actions& out);
  void handle(const checkpointing::flush&, actions& out);

  void learn(const std::vector<std::string>& names);
  void go(checkpointing::phase to, std::vector<checkpointing::operation> script, actions& out);
  void next_operation(actions& out);
  void script_done(actions& out);
  void went_wrong(const std::string& text, actions& out);
  void undo(actions& out);
  void see_generation(generation_id newest, actions& out);
  void wait_for_commit(const checkpointing::offered& e, actions& out);
  void wait_for_disk(const checkpointing::offered& e, actions& out);
  void replace(std::vector<checkpointing::offered>& waiting, bool keep_oldest, actions& out);
  void next_offer(actions& out);
  bool is_there(std::int64_t step) const;
  void enter_kept();
  void gone(std::int64_t step);
  void report(actions& out);
  void retire(actions& out);
  void finish(actions& out);

  std::string path_of(std::int64_t step) const;
  std::string hidden_path_of(std::int64_t step) const;

  settings given_;
  checkpointing::phase phase_ = checkpointing::phase::asleep;
  std::vector<kept_checkpoint> kept_;
  std::vector<std::int64_t> abandoned_;  ///< steps of a branch that was given up
  std::vector<std::string> leftovers_;   ///< hidden folders that a crash left
  std::vector<std::int64_t> retiring_;
  std::vector<checkpointing::offered> early_;    ///< not committed yet
  std::vector<checkpointing::offered> waiting_;  ///< for the disk
  std::int64_t committed_ = 0;
  checkpointing::offered current_;
  std::vector<checkpointing::operation> script_;
  std::size_t at_ = 0;        ///< in the script: the operation in flight
  std::uint64_t number_ = 0;  ///< of the operation in flight
  std::string why_;           ///< the current write failed; empty: it has not
  std::int64_t skipped_ = 0;  ///< snapshots that newer ones replaced since the last `written`
  bool lost_ = false;         ///< the last write failed
  generation_id generation_;
  bool flush_ = false;
};

}  // namespace troupe
