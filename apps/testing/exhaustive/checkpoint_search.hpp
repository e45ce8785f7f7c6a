// Exhaustive search of the checkpoint machine with a simulated disk. It visits every order in which
// snapshots are offered, steps are committed, generations begin, storage operations are answered
// and the run is flushed, with a failure at every operation. In every state it kills the program,
// or removes power, after every call of the operation in flight.
//
// What must always hold:
// - The machine never throws.
// - A checkpoint that is reported as written exists. Its step was committed, by the generation that
//   committed it. Only checkpoints that the policy keeps exist.
// - When no operation fails, the best snapshot of a run with one generation is kept.
// - A committed step waits for the disk only.
// - Late messages change nothing: an answer to an earlier operation, a snapshot or a commit of an
//   older generation.
// - Once flushed the machine holds nothing. It has written the last snapshot if that was committed
//   and nothing failed.
//
// After every crash:
// - The disk resolves (`latest`, else the newest whole one) to a whole checkpoint of a committed
//   step that is not older than the last one reported as written.
// - Where the policy keeps the best, one at least as good as the best reported is left.
// - A run that resumes removes what the crash left and writes its next checkpoint. All this holds,
//   too, when that run is killed or loses power after any call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::testing {

struct checkpoint_search {
  std::int64_t steps = 3;  ///< of the run, one snapshot each; the last must be written. 1 to 6
  std::int32_t keep_last = 1;
  std::int32_t keep_best = 1;
  std::int64_t past = 0;  ///< steps of an earlier run, whose checkpoints all exist. 0 to 6
  /// the one of those that the run resumes from; later ones are abandoned. 0: none
  std::int64_t resumed = 0;
  std::uint32_t generations = 1;  ///< at most; a new one repeats the uncommitted steps
  std::uint32_t failures = 1;     ///< most operations that fail
  bool crashes = true;
  std::uint64_t states_max = 5'000'000;
};

struct checkpoint_search_report {
  bool complete = false;  ///< all states were visited without a violation
  std::uint64_t states = 0;
  std::uint64_t crashes = 0;  ///< disks after a crash that were checked
  std::uint64_t resumes = 0;  ///< different ones of those from which a new run resumed
  std::uint64_t ends = 0;
  std::optional<std::string> violation;  ///< the violated property and a shortest path to it
};

/// Searches, breadth first. Throws user_error (bad_usage) for numbers outside of their ranges. One
/// thread.
checkpoint_search_report search_checkpoints(const checkpoint_search& options);

}  // namespace troupe::testing
