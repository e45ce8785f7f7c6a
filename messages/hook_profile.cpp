#include "troupe/outcome.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe {

namespace {

constexpr const char* mark_of_profile = "troupe.hook_profile";

double seconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::int64_t number_in(const value_tuple& all, std::size_t at) {
  const auto* number = at < all.items.size() ? all.items[at].get_if<std::int64_t>() : nullptr;
  return number ? *number : 0;
}

const value_map* profile_in(const value& what) {
  const auto* map = what.get_if<value_map>();
  if (!map) return nullptr;
  const auto found = map->items.find(mark_of_profile);
  return found == map->items.end() ? nullptr : found->second.get_if<value_map>();
}

}  // namespace

void hook_profile::add(std::string_view hook, std::chrono::nanoseconds took,
                       std::chrono::nanoseconds waited) {
  auto found = entries_.find(hook);
  if (found == entries_.end()) found = entries_.emplace(hook, entry{}).first;
  ++found->second.calls;
  found->second.took += took;
  found->second.waited += waited;
}

value hook_profile::as_value() const {
  value_map all;
  for (const auto& [hook, one] : entries_)
    all.items[hook] =
        value_tuple{{one.calls, std::int64_t{one.took.count()}, std::int64_t{one.waited.count()}}};
  value_map marked;
  marked.items[mark_of_profile] = std::move(all);
  return marked;
}

hook_profile hook_profile::from(const value& what) {
  hook_profile profile;
  const auto* all = profile_in(what);
  if (!all) return profile;
  for (const auto& [hook, numbers] : all->items)
    if (const auto* three = numbers.get_if<value_tuple>())
      profile.entries_[hook] = {number_in(*three, 0),
                                std::chrono::nanoseconds{number_in(*three, 1)},
                                std::chrono::nanoseconds{number_in(*three, 2)}};
  return profile;
}

hook_profile profile_of(const job_outcome& outcome) {
  for (const auto& one : outcome.queue)
    if (profile_in(one)) return hook_profile::from(one);
  return {};
}

std::string to_string(const hook_profile& profile) {
  using row = std::pair<std::string, hook_profile::entry>;
  std::vector<row> rows{profile.entries().begin(), profile.entries().end()};
  if (rows.empty()) return {};
  std::ranges::stable_sort(
      rows, [](const row& a, const row& b) { return a.second.took > b.second.took; });
  hook_profile::entry sum;
  for (const auto& [hook, one] : rows) {
    sum.calls += one.calls;
    sum.took += one.took;
    sum.waited += one.waited;
  }
  rows.emplace_back("all hooks", sum);
  auto text = fmt::format("{:<32}{:>10}{:>12}{:>12}{:>12}{:>8}\n", "hook of rank 0", "calls",
                          "mean ms", "total s", "waiting s", "share");
  for (const auto& [hook, one] : rows) {
    const auto total = seconds_of(one.took);
    const auto share = sum.took.count() > 0 ? 100 * total / seconds_of(sum.took) : 0;
    text += fmt::format("{:<32}{:>10}{:>12.3f}{:>12.3f}{:>12.3f}{:>7.1f}%\n", hook, one.calls,
                        1e3 * total / static_cast<double>(std::max<std::int64_t>(one.calls, 1)),
                        total, seconds_of(one.waited), share);
  }
  return text;
}

}  // namespace troupe
