#include "apps/testing/lognormal.hpp"

#include <cmath>
#include <numbers>

namespace troupe::testing {

namespace {

// Number of standard deviations below which a normal variable stays with probability `p` >= 1/2.
double deviations(double p) {
  double low = 0;
  double high = 8;
  for (int i = 0; i < 40; ++i) {
    const auto middle = (low + high) / 2;
    const auto below = 1 - std::erfc(middle / std::numbers::sqrt2) / 2;
    (below < p ? low : high) = middle;
  }
  return low;
}

}  // namespace

lognormal::lognormal(std::int32_t spread) {
  if (spread <= 0) return;
  per_million_.assign(levels, one);
  const auto at = [&](double deviation) {
    return std::llround(static_cast<double>(one) * std::exp(deviation * spread / 1000));
  };
  // Levels 2n - 1 and 2n lie equally far above and below the median; the last level has no partner.
  for (std::uint64_t n = 1; 2 * n - 1 < levels; ++n) {
    const auto far =
        deviations(0.5 + static_cast<double>(2 * n - 1) / static_cast<double>(2 * levels));
    per_million_[2 * n - 1] = at(far);
    if (2 * n < levels) per_million_[2 * n] = at(-far);
  }
}

}  // namespace troupe::testing
