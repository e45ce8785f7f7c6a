#include "actors/restart_budget.hpp"

#include <algorithm>

namespace troupe {

std::int32_t restart_budget::used(std::chrono::nanoseconds now, std::int64_t committed) const {
  const auto counts = [&](const auto& restart) {
    const auto& [when, committed_then] = restart;
    return rules_.window.count() == 0 || now - when < rules_.window || committed <= committed_then;
  };
  return static_cast<std::int32_t>(std::ranges::count_if(restarts_, counts));
}

// The pause before the next generation: none if a step was committed. Else it begins at 50 ms and
// doubles with each further generation that commits no step, six times at most.
std::chrono::nanoseconds restart_budget::rest(std::int64_t committed) const {
  constexpr std::chrono::nanoseconds first = std::chrono::milliseconds{50};
  constexpr std::uint32_t doublings = 6;
  if (advanced(committed) || fruitless_ == 0) return std::chrono::nanoseconds{0};
  return first * (1 << std::min(fruitless_ - 1, doublings));
}

void restart_budget::fail(std::chrono::nanoseconds now, std::int64_t committed, bool free) {
  if (!free) restarts_.emplace_back(now, committed);
  fruitless_ = advanced(committed) ? 0 : fruitless_ + 1;
}

bool restart_budget::wait(std::chrono::nanoseconds now) {
  if (waits_since_) return false;
  waits_since_ = now;
  return true;
}

}  // namespace troupe
