#include "backends/telemetry/rank_figures.hpp"

#include <fmt/format.h>

#include <charconv>

namespace troupe {

namespace {

constexpr std::string_view prefix = "rank/";

struct parts {
  std::int32_t rank = -1;  // -1: no figure of a rank
  std::string_view name = {};
};

parts parts_of(std::string_view metric) {
  if (!metric.starts_with(prefix)) return {};
  metric.remove_prefix(prefix.size());
  parts found;
  const auto slash = std::min(metric.find('/'), metric.size());
  const auto [end, error] = std::from_chars(metric.data(), metric.data() + slash, found.rank);
  const bool whole = error == std::errc{} && end == metric.data() + slash && found.rank >= 0;
  if (!whole || slash == metric.size()) return {};
  found.name = metric.substr(slash + 1);
  return found;
}

}  // namespace

bool rank_figures::is_one(std::string_view metric) { return parts_of(metric).rank >= 0; }

bool rank_figures::take(std::string_view metric, double value) {
  const auto [rank, name] = parts_of(metric);
  if (name == "samples_per_second")
    of_[rank].rate = value;
  else if (name == "waiting_share")
    of_[rank].share = value;
  else
    return false;
  return true;
}

std::vector<std::string> rank_figures::lines(std::size_t most) const {
  std::vector<std::string> all;
  for (const auto& [rank, figures] : of_) {
    if (all.size() + 1 == most && of_.size() > most) {
      all.push_back(fmt::format("and {} more ranks", of_.size() - all.size()));
      break;
    }
    if (all.size() == most) break;
    auto line = fmt::format("rank {:<3}", rank);
    if (figures.rate) line += fmt::format("  {:>8.0f} samples/s", *figures.rate);
    if (figures.share) line += fmt::format("  waiting {:>5.1f} %", 100 * *figures.share);
    all.push_back(std::move(line));
  }
  return all;
}

}  // namespace troupe
