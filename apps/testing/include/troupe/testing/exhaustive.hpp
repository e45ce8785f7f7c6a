// Exhaustive search: every interleaving of the machines of a small job, with every fault at every
// moment. A supervisor, its ranks, their lanes and the messages between them are one value; the
// search visits each such value once, breadth first, so a violation is reached by a shortest path.
//
// What may happen next is any of:
// - A rank or the supervisor receives the message at the head of a link (links keep their order).
// - A lane goes on: to its collective with the other ranks, out of it, to the answer, or out of a
//   collective that was aborted.
// - A communicator is open.
// - A fault, while the budget lasts.
// A deadline passes only when nothing else can happen: time is no fault (except for
// `small_fault::early_deadline`).
//
// What must hold:
// - Machines never throw.
// - A rank gets no run while another run of it is in flight.
// - The supervisor announces a commit only when every rank holds the step, and commits only rise.
// - A rank is active only in the supervisor's generation.
// - Until the job is complete there is always a next move, and one that is no deadline unless a
//   message was lost.
// - When the job is complete nothing is left: every rank is gone, and there are survivors only
//   where a message was lost or a deadline of the teardown came early.
// - A run without a failure ends at the same step on all ranks, at the last step unless it was
//   stopped, and each learner has applied so many steps.
// - A run with a failure ends as failed, with the injected fault as first cause and no cause
//   before it.
//
// With `restarts` a failure forms a new generation. A rank that is lost begins anew as a new value;
// the others keep theirs. The state of a learner is the number of steps that it has applied, which
// is also what a reference without faults has. Then this must hold, too:
// - A rank reports only what its learner has: the steps that are done, the point that it holds and
//   the digest of that state.
// - The base is the highest point that a rank holds that stays, and the holders are those ranks.
// - A rank that gives its state to others has that of the base.
// - No more restarts than allowed; each generation but the last has a cause; at most one step is
//   done again, unless no rank was left.
// - The first failure does not fail the job before its last step, unless the caller asked for it.
// The reduction stays right: nothing that it puts first starts a generation for a rank whose lane
// is in a collective, because a generation forms only when all ranks that stay have closed the one
// before, with a free lane. So an abort of an earlier communicator never reaches a later one, and
// what a rank holds does not change between its report and the new generation. Messages of a rank
// that was replaced come before those of its successor; the fence refuses them in any order.
#pragma once

#include "actors/supervisor_machine.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::testing {

/// One kind of fault. A run has up to `exhaustive_options::budget` of them, at any moments.
enum class small_fault : std::uint8_t {
  none,
  throws,    ///< a hook throws
  vanishes,  ///< a rank's actor is gone without an abort of its communicator (a killed process)
  leaves,    ///< a rank's actor is gone; its communicator is aborted (an ended actor)
  stops,     ///< the caller asks for a stop
  aborts,    ///< the caller asks for an end now
  loses,     ///< a message is lost
  repeats,   ///< a message is received twice
  early_deadline  ///< the supervisor's deadline passes although another move is possible
};
/// The enumerator's name.
std::string_view to_string(small_fault f);
/// All kinds.
std::vector<small_fault> small_faults();

/// The small job, its faults, and the bounds of the search.
struct exhaustive_options {
  std::int32_t ranks = 3;  ///< 1 to 4
  /// Optimizer steps of the job: 0 to 8.
  std::int64_t steps = 2;
  bool one_hook_per_run = false;  ///< each hook is its own run
  std::int32_t restarts = 0;      ///< that the job may do: 0 or 1
  /// The faults that may happen.
  std::vector<small_fault> faults = small_faults();
  std::uint32_t budget = 1;  ///< faults in one run: 0 to 2
  /// Each kind happens at most once in a run. All runs with two faults are those of each pair of
  /// two kinds, once, and those of each kind alone. Each of these searches needs less memory.
  bool once = false;
  /// Leaves out interleavings that cannot make a difference (small_job_moves.hpp explains which),
  /// and takes states that differ only in the numbers of their ranks as one (rank_symmetry.hpp).
  bool reduce = true;
  /// The search ends at the first of these bounds; exhaustive_report::bound says which.
  /// @{
  std::uint64_t states_max = 150'000'000;
  std::uint64_t bytes_max = std::uint64_t{4} << 30;
  double seconds_max = 600;
  /// @}
  /// A further property: returns what is wrong with this end of the job, or nothing. Of failures
  /// that follow, and of generations that are over, only kinds, types and codes are there.
  std::function<std::string(const supervision::complete&)> end_must;
};

/// A property that does not hold.
struct exhaustive_violation {
  std::string what;   ///< the property that does not hold, in words
  std::string chart;  ///< a shortest path to it, one line per move, and the final states
};

/// What a search found.
struct exhaustive_report {
  bool complete = false;  ///< all states were visited without a violation
  /// the bound that ended the search, when it is neither complete nor a violation
  std::string bound;
  /// Visited, each once.
  std::uint64_t states = 0;
  std::uint64_t symmetries = 1;  ///< permutations of the ranks, whose images count as one state
  /// Moves from one state to another.
  std::uint64_t transitions = 0;
  std::uint64_t depth = 0;                       ///< moves on the longest path from the start
  std::uint64_t ends = 0;                        ///< states in which the job is complete
  std::uint64_t ends_digest = 0;                 ///< of the set of ends, in any order
  std::map<std::string, std::uint64_t> endings;  ///< number of ends by status and faults
  /// That the search took.
  double seconds = 0;
  std::uint64_t bytes = 0;  ///< the largest size of the search's tables
  /// The first one, which ends the search.
  std::optional<exhaustive_violation> violation;

  /// `complete: 48211 states, ...`, one line.
  std::string summary() const;
};

/// Searches. Throws user_error (bad_usage) for options outside of their ranges. One thread.
exhaustive_report exhaust(const exhaustive_options& options);

}  // namespace troupe::testing
