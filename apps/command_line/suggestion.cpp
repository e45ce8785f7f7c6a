#include "apps/command_line/suggestion.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::program {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto width = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return cost[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

std::optional<std::string> suggestion(std::string_view word,
                                      const std::vector<std::string>& candidates) {
  // A longer word than this is no typing mistake in any name here. Also bounds the table above.
  constexpr std::size_t word_max = 80;
  if (word.size() > word_max) return std::nullopt;
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const auto& candidate : candidates) {
    auto distance = edit_distance(word, candidate);
    if (const auto dot = candidate.rfind('.'); dot != std::string::npos)
      distance = std::min(distance, edit_distance(word, candidate.substr(dot + 1)) + 1);
    if (distance > std::max(word.size(), candidate.size()) / 2) continue;
    if (best && distance >= best_distance) continue;
    best = &candidate;
    best_distance = distance;
  }
  return best ? std::optional{*best} : std::nullopt;
}

std::string hint(std::string_view word, const std::vector<std::string>& candidates) {
  const auto found = suggestion(word, candidates);
  return found ? fmt::format("; did you mean \"{}\"?", *found) : std::string{};
}

}  // namespace troupe::program
