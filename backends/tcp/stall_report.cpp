#include "backends/tcp/stall_report.hpp"

#include <algorithm>
#include <set>

namespace troupe::tcp {

std::vector<std::int32_t> holding_up(std::int32_t me, std::span<const std::int32_t> first,
                                     const waits_of& answers) {
  std::set<std::int32_t> seen{me};
  std::set<std::int32_t> found;
  std::vector<std::int32_t> next(first.begin(), first.end());
  while (!next.empty()) {
    const auto rank = next.back();
    next.pop_back();
    if (!seen.insert(rank).second) continue;
    const auto said = answers.find(rank);
    if (said == answers.end() ||
        std::find(said->second.begin(), said->second.end(), rank) != said->second.end())
      found.insert(rank);
    else
      next.insert(next.end(), said->second.begin(), said->second.end());
  }
  return {found.begin(), found.end()};
}

}  // namespace troupe::tcp
