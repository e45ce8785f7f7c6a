// Times that scatter as those of real steps do: most a little off, few far off, none below 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace troupe::testing {

/// A lognormal distribution by levels: level 0 is its median, and each further one lies farther
/// from it, by turns above and below. So a draw of 0 is benign, and a lower one more so.
class lognormal {
public:
  static constexpr std::uint64_t levels = 4096;

  /// `spread`: standard deviation of the logarithm, in thousandths; 0: always the median.
  explicit lognormal(std::int32_t spread);

  std::chrono::nanoseconds of(std::chrono::nanoseconds median, std::uint64_t level) const {
    return scaled(median, per_million_.empty() ? one : per_million_[level % levels]);
  }
  /// The longest.
  std::chrono::nanoseconds most(std::chrono::nanoseconds median) const {
    return of(median, levels - 1);
  }

private:
  static constexpr std::int64_t one = 1'000'000;
  static std::chrono::nanoseconds scaled(std::chrono::nanoseconds what, std::int64_t per_million) {
    return what / one * per_million + what % one * per_million / one;
  }
  // In integers, so that the last bit of a machine's exponential function does not reach a trace.
  std::vector<std::int64_t> per_million_;  // by level
};

}  // namespace troupe::testing
