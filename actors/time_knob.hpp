// One time knob: the user says how fast a failure must be noticed, everything else follows.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>

#include "messages/options.hpp"

namespace troupe {

/// Every deadline of a job, derived from `detect` (D) and `hook_limit` (H, 600 D unless set).
struct deadlines {
  std::chrono::nanoseconds tick{0};  ///< D: how often a rank looks at its lane
  std::chrono::nanoseconds hook{0};  ///< H: the longest a hook may run
  std::chrono::nanoseconds collective{
      0};  ///< H + 4D: the longest a collective waits for a peer, whose hook is reported before
  std::chrono::nanoseconds form{
      0};  ///< 20 D, at least 10 s: starting threads and opening communicators
  std::chrono::nanoseconds settle{0};  ///< D: for the first cause behind failures that only follow
  std::chrono::nanoseconds close{0};   ///< 4 D: for on_exception on every rank
  std::chrono::nanoseconds teardown{0};  ///< 4 D: for a teardown after a failure, and for observers
  std::chrono::nanoseconds orderly_teardown{0};  ///< H + 4D: user hooks run in it
  std::chrono::nanoseconds flush{0};             ///< H: for the last checkpoint on a slow disk
  friend bool operator==(const deadlines&, const deadlines&) = default;
};

/// Throws user_error (bad_configuration) when D is not positive or above an hour, or when H is less
/// than D.
deadlines derive(const time_knob& knob);
/// Throws user_error naming both when an inner deadline outlasts the outer one that should end it.
void check(const deadlines& limits);

}  // namespace troupe
