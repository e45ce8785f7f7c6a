// The newest deadline of an actor. A time in which the process was stopped does not count.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "backends/running_clock.hpp"

namespace troupe {

class running_deadline {
public:
  using duration = std::chrono::nanoseconds;

  /// The actor looks after `tick` at the latest. Of a longer stop two ticks count.
  explicit running_deadline(duration tick) : tick_(tick), running_(2 * tick) {}

  void arm(std::uint64_t id, duration now, duration delay) {
    id_ = id;
    due_ = running(now) + delay;
  }
  /// When to look again; 0: it has passed, or another one is newer. Not less than a sixteenth of a
  /// tick: the clock may run slower than the timers.
  duration left(std::uint64_t id, duration now) {
    const auto rest = due_ - running(now);
    if (id != id_ || rest.count() <= 0) return duration{0};
    return std::clamp(rest, tick_ / 16, tick_);
  }

private:
  // `running_` takes no reading of 0, at which simulated clocks begin.
  duration running(duration now) { return running_.read(now + std::chrono::hours{1}); }

  const duration tick_;
  running_time running_;
  std::uint64_t id_ = 0;
  duration due_{0};
};

}  // namespace troupe
