// The exhaustive mode for checkpoints: the checkpoint machine with a disk that is a value, in every
// order in which snapshots are offered, steps are committed, generations begin, storage operations
// are answered and the run is flushed, with every place of an operation that fails; and in every
// state the program is killed, or power is lost, behind every call of the operation in flight.
//
// What must hold, always: the machine never throws; what it reports as written is there, is of a
// step that was committed, by the generation that committed it, and what the policy keeps is all
// there is; when no operation fails, the best snapshot of a run with one generation is kept;
// nothing that is committed waits for something else than the disk; words that come late (an answer
// to an earlier operation, a snapshot or a commit of an older generation) change nothing; once
// flushed it holds nothing, and has written the last snapshot if that was committed and nothing
// failed.
//
// Behind every crash: what the disk resolves to (`latest`, else the newest whole one) is a whole
// checkpoint of a committed step, not older than the last one reported as written; one at least as
// good as the best reported is left, where the policy keeps the best; a run that goes on from there
// sweeps what the crash left and writes its next checkpoint; all of this holds too when that one is
// killed or power is lost, behind every call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::testing {

struct checkpoint_search {
  std::int64_t steps = 3;  ///< of the run, one snapshot each; the last must be written. 1 to 6
  std::int32_t keep_last = 1;
  std::int32_t keep_best = 1;
  std::int64_t past = 0;     ///< steps of an earlier run, whose checkpoints are all there. 0 to 6
  std::int64_t resumed = 0;  ///< of those the one gone on from; later ones are given up. 0: none
  std::uint32_t generations = 1;  ///< at most; a new one takes again what was not committed
  std::uint32_t failures = 1;     ///< operations that fail, at most
  bool crashes = true;
  std::uint64_t states_max = 5'000'000;
};

struct checkpoint_search_report {
  bool complete = false;  ///< everything was visited, and nothing is wrong
  std::uint64_t states = 0;
  std::uint64_t crashes = 0;  ///< disks as a crash left them that were looked at
  std::uint64_t resumes = 0;  ///< of those, unlike ones that a new run went on from
  std::uint64_t ends = 0;
  std::optional<std::string> violation;  ///< what does not hold, and a shortest way there
};

/// Searches, breadth first. Throws user_error (bad_usage) for numbers outside of their ranges. One
/// thread.
checkpoint_search_report search_checkpoints(const checkpoint_search& options);

}  // namespace troupe::testing
