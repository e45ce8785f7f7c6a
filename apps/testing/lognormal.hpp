// Step times with a realistic spread: most are close to the median, few are far off, none is
// negative.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace troupe::testing {

/// A lognormal distribution in levels. Level 0 is the median; each further level lies farther away,
/// alternately above and below. So draw 0 is benign, and lower draws are more benign.
class lognormal {
public:
  static constexpr std::uint64_t levels = 4096;

  /// `spread`: standard deviation of the logarithm in thousandths; 0: always the median.
  explicit lognormal(std::int32_t spread);

  std::chrono::nanoseconds of(std::chrono::nanoseconds median, std::uint64_t level) const {
    return scaled(median, per_million_.empty() ? one : per_million_[level % levels]);
  }
  /// The longest time.
  std::chrono::nanoseconds most(std::chrono::nanoseconds median) const {
    return of(median, levels - 1);
  }

private:
  static constexpr std::int64_t one = 1'000'000;
  static std::chrono::nanoseconds scaled(std::chrono::nanoseconds what, std::int64_t per_million) {
    return what / one * per_million + what % one * per_million / one;
  }
  // Integers, so that the rounding of a machine's exponential function cannot change a trace.
  std::vector<std::int64_t> per_million_;  // by level
};

}  // namespace troupe::testing
