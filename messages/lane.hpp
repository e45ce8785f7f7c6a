// The messages between a rank actor and its lane.
#pragma once

#include "messages/fence.hpp"
#include "troupe/failure.hpp"
#include "troupe/observer.hpp"
#include "troupe/value.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace troupe {

/// Rank actor to lane, through the lane port: hooks to handle in order. The lane answers each run
/// with exactly one `ran`, in order. Late: a run of a closed generation ends at the first hook.
/// Lost: only with the lane, and then the rank's failure is reported.
struct hook_run {
  fence at;  ///< `sequence` numbers the runs of this rank in this generation, from 1
  std::vector<hook> hooks;
  /// The run ends at a point to which the rank may have to return: after its last hook the lane
  /// calls `learner::keep_point`.
  bool keep_point = false;
};

/// Lane to rank actor: the answer to one run. The first `handled` hooks were handled without an
/// exception on this rank; nothing follows about other ranks. Late: the rank actor drops the answer
/// to any run but its newest.
struct ran {
  fence at;                   ///< the run's
  std::uint32_t handled = 0;  ///< hooks of the run that were entered and left without an exception
  hook_outcome outcome;
  std::optional<caught> failed_with;  ///< outcome.verdict == failed
};

}  // namespace troupe
