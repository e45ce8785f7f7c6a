#include "apps/bench/timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace troupe::program {

namespace {

// Interpolates between the two nearest sorted values.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const auto high = static_cast<std::size_t>(std::ceil(at));
  return sorted[low] + (at - std::floor(at)) * (sorted[high] - sorted[low]);
}

}  // namespace

timing summary(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  const auto median = quantile(seconds, 0.5);
  const auto between = quantile(seconds, 0.75) - quantile(seconds, 0.25);
  return {median, median > 0 ? between / median : 0, seconds.front()};
}

double bench_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace troupe::program
