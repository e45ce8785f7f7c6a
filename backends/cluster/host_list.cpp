#include "backends/cluster/host_list.hpp"

#include <algorithm>

namespace troupe {

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() == ']') return std::nullopt;
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const auto end = list.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    const auto ranges = list.substr(1, end - 1);
    const auto digits = ranges.substr(0, ranges.find_first_not_of("0123456789"));
    if (digits.empty()) return std::nullopt;
    host += digits;
    list.remove_prefix(end + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::vector<std::string> split_hosts(std::string_view list) {
  std::vector<std::string> all;
  while (!list.empty()) {
    const auto comma = list.find(',');
    if (const auto one = list.substr(0, comma); !one.empty()) all.emplace_back(one);
    list.remove_prefix(
        std::min(list.size(), comma == std::string_view::npos ? list.size() : comma + 1));
  }
  return all;
}

}  // namespace troupe
