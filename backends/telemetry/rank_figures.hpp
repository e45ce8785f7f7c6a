// The figures of ranks that a rank_monitor logs, for displays.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The newest throughput and waiting of each rank.
class rank_figures {
public:
  /// Whether a metric is one of a rank: `rank/N/NAME`.
  static bool is_one(std::string_view metric);
  /// Keeps the value of such a metric. False: it is none, or one that is not shown.
  bool take(std::string_view metric, double value);
  /// A line per rank, in their order: `rank 0   10950 samples/s   waiting   3.1 %`. Of more than
  /// `most` ranks the last line says how many are left out.
  std::vector<std::string> lines(std::size_t most) const;

private:
  struct figures {
    std::optional<double> rate;   ///< samples per second
    std::optional<double> share;  ///< of its time, in collectives
  };
  std::map<std::int32_t, figures> of_;
};

}  // namespace troupe
