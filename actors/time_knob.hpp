<<<<<<< HEAD
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
=======
// Every deadline of a job, derived from the one knob a user turns: how fast a failure must be
// noticed (D). A deadline is inner to another when it must pass first for the right one to be
// named. Pure; thread-safe.
#pragma once

#include "messages/options.hpp"

#include <chrono>

namespace troupe {

/// All of them; what passes them is named with rank, hook and duration.
struct deadlines {
  using duration = std::chrono::nanoseconds;

  /// D itself.
  duration detect{0};
  /// How often a rank looks at its hook in flight: D, so a hook past its limit is named within D.
  duration tick{0};
  /// A rank's answer to propose_stop: 2 D. Rank actors never wait, so one D for the way there and
  /// back is ample, another for a loaded machine.
  duration vote{0};
  /// All ranks prepared: 4 D, at least 2 s. Threads, communicators and the first touch of a cold
  /// LibTorch or device belong to it, and they do not get faster by a tighter knob.
  duration form{0};
  /// Answers to close_generation: 4 D. on_exception runs there; longer than a vote, since a lane
  /// has to come out of what it waits for.
  duration close{0};
  /// The grace for tear_down: 4 D; whoever has not answered then is a survivor.
  duration teardown{0};
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
/// collective, vote < close.
void check(const time_knob& knob);
>>>>>>> fit

}  // namespace troupe
