#include "backends/running_clock.hpp"

#include <algorithm>

namespace troupe {

namespace {

constinit running_time of_this_process{running_clock::longest_gap};

}  // namespace

void running_time::keep(duration steady) noexcept {
  const std::lock_guard hold{keeping_};
  const auto last = last_.load(std::memory_order_relaxed);
  const auto gap = steady.count() - last;
  if (last != 0 && gap > longest_gap_.count())
    stood_still_.fetch_add(gap - longest_gap_.count(), std::memory_order_relaxed);
  // Released after what is subtracted: who sees this reading subtracts that too.
  if (gap > 0) last_.store(steady.count(), std::memory_order_release);
}

running_clock::time_point running_clock::now() noexcept {
  for (;;) {
    const auto before = of_this_process.stood_still();
    const auto now = of_this_process.read(std::chrono::steady_clock::now().time_since_epoch());
    // Else the process was stopped after the steady clock was read, and `now` is too early.
    if (of_this_process.stood_still() == before) return time_point{now};
  }
}

running_clock::time_point running_clock::next_look(time_point until) noexcept {
  return std::min(until, now() + slice);
}

}  // namespace troupe
