// How long a rank's hook has run, without the time in which the process was stopped.
#pragma once

#include "backends/running_clock.hpp"

#include <algorithm>
#include <chrono>

namespace troupe {

/// The rank actor looks at its lane once a tick. A look that comes much later shows that the
/// process was stopped: the hook could not run. So that time does not count.
class hook_time {
public:
  using duration = std::chrono::nanoseconds;

  /// `now`: when the first tick began.
  hook_time(duration tick, duration now) : running_(tick + std::max(tick, least_delay)) {
    running_.read(now);
  }

  /// `since`: how long the hook in flight at `now` has been in flight, by the same steady clock.
  duration look(duration now, duration since) {
    const auto before = running_.stood_still();
    running_.read(now);
    if (since < now - last_look_) before_hook_ = before;  // it began after the last look
    last_look_ = now;
    return since - std::min(since, running_.stood_still() - before_hook_);
  }

private:
  // A look on a loaded machine may come so much later.
  static constexpr duration least_delay = std::chrono::seconds{1};

  running_time running_;
  duration last_look_{0};
  duration before_hook_{0};  // what the process had been stopped for when the hook began
};

}  // namespace troupe
