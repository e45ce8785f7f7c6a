// How simulated adapters make something happen in virtual time.
#pragma once

#include <chrono>
#include <functional>

namespace troupe {

/// Lets a world decide when something happens: `later(delay, what)` calls `what` once, `delay` of
/// virtual time from now, never before it returns.
using later_fn = std::function<void(std::chrono::nanoseconds delay, std::function<void()> what)>;

}  // namespace troupe
