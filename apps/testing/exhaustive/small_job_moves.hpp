// The moves of a small job, and their effects.
//
// Reduction. When no fault is left to happen, some moves can be taken first without losing an end
// or a violation (a persistent set): what is left out only comes later in another order.
//   All moves of one rank, when
//   - a message waits for it: the supervisor can only append to its queue, which commutes;
//   - nothing that others do changes what its lane can do: the lane is idle, or works where it does
//     not meet, or is in a complete collective, or the communicator is aborted (for good);
//   - none of them aborts a communicator that is whole, and none changes the steps it holds (what
//     commits are compared with).
//   All messages to the supervisor, when
//   - each rank has one waiting (more come after it) or sends nothing until it receives a message:
//     it is gone, or idle with nothing waiting;
//   - none can make the supervisor commit (with restarts: prepared, which activates the base).
// Deadlines pass only when nothing else can happen, so none comes in between.
// Ends and what a single part does wrong are kept: no state is met twice on one way (every event is
// used up), so no move is put off for ever. tests/unit/apps/exhaustive/exhaust_test.cpp compares
// with the search without reduction.
#pragma once

#include "apps/testing/exhaustive/small_job_tables.hpp"

#include <span>

namespace troupe::testing {

enum class move_kind : std::uint8_t {
  supervisor_receives,  ///< the first message of a rank
  rank_receives,        ///< the supervisor's first message to it
  rank_does,            ///< see rank_move
  deadline,             ///< the supervisor's, when nothing else can happen
  fault,                ///< see small_fault
};
struct small_job_move {
  move_kind kind = move_kind::deadline;
  std::uint8_t rank = 0;
  std::uint8_t what = 0;       ///< rank_move or small_fault
  bool to_supervisor = false;  ///< a lost or repeated message's way
};

/// Numbers of the parts and queues of all ranks, and the faults so far.
using small_job_state = std::array<std::uint32_t, 14>;

class small_job_space {
public:
  small_job_space(const exhaustive_options& options, rank_permutations symmetry);

  std::size_t words() const { return 2 + 3 * static_cast<std::size_t>(options_.ranks); }
  small_job_state start();
  bool ended(const small_job_state& s) const { return tables_.supervisor(s[0]).ended; }

  /// The possible moves, reduced if requested. None: the job has ended, or no move is possible.
  void moves(const small_job_state& s, std::vector<small_job_move>& out);
  /// Makes a move. Returns what is wrong with it or with the state it leads to; empty: nothing.
  std::string make(small_job_state& s, const small_job_move& move);

  /// Makes a state the one that stands for all its images (rank_symmetry.hpp). Returns the
  /// permutation that does it.
  std::size_t make_canonical(small_job_state& s);
  small_job_state image(const small_job_state& s, std::size_t permutation);
  small_job_move image(const small_job_move& move, std::size_t permutation) const;

  /// What is wrong with an end; empty: nothing.
  std::string check_end(const small_job_state& s) const;
  /// For example `failed after throws`.
  std::string ending(const small_job_state& s) const;
  /// Equal for equal ends in every search.
  std::uint64_t digest(const small_job_state& s) const;

  /// Describes a move and its effect in one line.
  std::string describe_move(const small_job_state& before, const small_job_move& move);
  std::string describe_state(const small_job_state& s) const;
  const small_job_tables& tables() const { return tables_; }
  const rank_permutations& symmetry() const { return tables_.symmetry(); }

private:
  static constexpr std::size_t flags = 1;
  static constexpr std::size_t side_of(std::int32_t r) {
    return static_cast<std::size_t>(2 + 3 * r);
  }
  static constexpr std::size_t inbox_of(std::int32_t r) { return side_of(r) + 1; }
  static constexpr std::size_t mail_of(std::int32_t r) { return side_of(r) + 2; }

  bool aborted(const small_job_state& s) const { return (s[flags] & 1) != 0; }
  std::uint32_t faults_used(const small_job_state& s) const { return s[flags] >> 1 & 3; }
  std::vector<std::pair<small_fault, std::int32_t>> faults_of(const small_job_state& s) const;
  void note_fault(small_job_state& s, small_fault what, std::int32_t detail) const;
  void set_faults(small_job_state& s,
                  const std::vector<std::pair<small_fault, std::int32_t>>& all) const;
  bool may_be_late(const small_job_state& s) const;
  bool gave_up_early(const small_job_state& s) const;
  bool collective_complete(const small_job_state& s, std::int32_t r) const;

  void rank_moves_of(const small_job_state& s, std::int32_t r,
                     std::vector<small_job_move>& out) const;
  void fault_moves(const small_job_state& s, std::vector<small_job_move>& out) const;
  void late_moves(const small_job_state& s, std::vector<small_job_move>& out) const;
  bool keep_one_rank(const small_job_state& s, std::vector<small_job_move>& out);
  bool keep_supervisor(const small_job_state& s, std::vector<small_job_move>& out) const;
  bool lane_is_its_own(const small_job_state& s, std::int32_t r) const;
  bool silent(const small_job_state& s, std::int32_t r) const;

  std::string supervise(small_job_state& s, message_number event);
  void abort(small_job_state& s, std::int32_t r) const;
  std::string form(small_job_state& s, const supervisor_outcome& out) const;
  std::string take(small_job_state& s, std::int32_t r, const rank_outcome& out);
  std::string receive_order(small_job_state& s, std::int32_t r, bool pops);
  std::string do_fault(small_job_state& s, const small_job_move& move);
  std::string check_state(const small_job_state& s) const;
  std::string check_first_cause(const small_job_state& s) const;
  std::string check_generations(const small_job_state& s) const;

  exhaustive_options options_;
  small_job_tables tables_;
};

}  // namespace troupe::testing
