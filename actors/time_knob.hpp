// Every deadline of a job, derived from the one knob a user turns: how fast a failure must be
// noticed (D). An inner deadline runs within an outer one and is shorter: it passes first, so the
// job's failure names the actual cause. Pure; thread-safe.
#pragma once

#include "troupe/options.hpp"

#include <chrono>

namespace troupe {

/// All of them; what passes them is named with rank, hook and duration.
struct deadlines {
  using duration = std::chrono::nanoseconds;

  /// D itself.
  duration detect{0};
  /// How often a rank looks at its hook in flight: D, so a hook past its limit is named within D.
  duration tick{0};
  /// All ranks prepared: 4 D, at least 10 s. Threads, communicators and the first touch of a cold
  /// LibTorch or device belong to it, and they do not get faster by a tighter knob. When it passes
  /// and every missing rank has made progress in that time, it begins anew: cores that many
  /// processes share make a start as slow as a hook. The start of a process and each set-up hook of
  /// a new rank may last hook_limit, and all of forming form_most.
  duration form{0};
  /// 8 hook_limit: the start of a process, set-up hooks and the transfer of the state follow each
  /// other.
  duration form_most{0};
  /// Answers to close_generation: 4 D. In this time a rank's lane ends its wait and calls
  /// on_exception.
  duration close{0};
  /// How long the supervisor waits for the first cause, after a failure that only follows: D.
  duration settle{0};
  /// The grace for tear_down after a failure, and for observers: 4 D. A rank that has not answered
  /// then is a survivor.
  duration teardown{0};
  /// An orderly teardown runs users' hooks and meets at a barrier: collective + 4 D.
  duration orderly_teardown{0};
  /// The longest a single hook may run: as set, or 600 D.
  duration hook_limit{0};
  /// The longest a collective may wait for its peers: hook_limit + 2 D. A peer whose hook is too
  /// long is named by its own rank (within a tick) before those who wait for it are.
  duration collective{0};
  /// Checkpointer and observers to write what is pending: hook_limit; a disk may be as slow as a
  /// hook.
  duration flush{0};

  friend bool operator==(const deadlines&, const deadlines&) = default;
};

deadlines derive(const time_knob& knob);

/// Throws user_error (bad_configuration) naming the setting when D is outside of 1 ms .. 1 h, or an
/// inner deadline does not end before its outer one: tick < hook_limit, hook_limit + tick <
/// collective, settle < close.
void check(const time_knob& knob);

}  // namespace troupe
