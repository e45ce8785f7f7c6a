#include "apps/testing/choices.hpp"

#include <algorithm>
#include <ostream>

#include "backends/data_order.hpp"

namespace troupe::testing {

namespace {

__extension__ using wide = unsigned __int128;

std::uint64_t key_of(site where, std::uint32_t who, std::uint32_t occurrence) {
  return static_cast<std::uint64_t>(where) << 56 | static_cast<std::uint64_t>(who) << 32 |
         occurrence;
}

}  // namespace

std::string_view to_string(site s) {
  switch (s) {
    case site::entropy: return "entropy";
    case site::setup: return "setup";
    case site::schedule: return "schedule";
    case site::latency: return "latency";
    case site::compute: return "compute";
    case site::priority: return "priority";
    case site::change_point: return "change_point";
    case site::fault: return "fault";
    case site::detail: return "detail";
    case site::link: return "link";
    case site::storage: return "storage";
    case site::rare: return "rare";
    case site::old_word: return "old_word";
    case site::count_: break;
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, const choice& c) {
  return out << to_string(c.where) << '.' << c.who << '.' << c.occurrence << '=' << c.value;
}

choices choices::of_seed(std::uint64_t seed) {
  choices fresh;
  fresh.seed_ = seed;
  return fresh;
}

choices choices::of_list(std::uint64_t seed, const std::vector<choice>& taken) {
  auto fresh = of_seed(seed);
  fresh.from_list_ = true;
  for (const auto& c : taken) fresh.listed_[key_of(c.where, c.who, c.occurrence)] = c.value;
  return fresh;
}

inline std::uint32_t choices::next_occurrence(site where, std::uint32_t who) {
  auto& counts = occurrences_[static_cast<std::size_t>(where)];
  if (counts.size() <= who) counts.resize(who + 1, 0);
  return counts[who]++;
}

inline std::uint64_t choices::noise(site where, std::uint32_t who, std::uint32_t occurrence) const {
  return mix(mix(seed_ ^ key_of(where, who, 0)) + occurrence);
}

inline std::uint64_t choices::note(site where, std::uint32_t who, std::uint32_t occurrence,
                                   std::uint64_t value) {
  ++draws_;
  digest_ = mix(digest_ ^ key_of(where, who, occurrence)) + value;
  if (recording_ && value != 0) taken_.push_back({where, who, occurrence, value});
  return value;
}

std::uint64_t choices::draw(site where, std::uint32_t who, std::uint64_t bound) {
  const auto occurrence = next_occurrence(where, who);
  if (bound < 2) return 0;
  if (from_list_) return listed(where, who, occurrence, bound);
  const auto drawn = static_cast<wide>(noise(where, who, occurrence)) * bound >> 64;
  return note(where, who, occurrence, static_cast<std::uint64_t>(drawn));
}

std::uint64_t choices::listed(site where, std::uint32_t who, std::uint32_t occurrence,
                              std::uint64_t bound) {
  const auto found = listed_.find(key_of(where, who, occurrence));
  const auto value = found == listed_.end() ? 0 : std::min(found->second, bound - 1);
  return note(where, who, occurrence, value);
}

std::uint64_t choices::pick(site where, std::uint32_t who, std::span<const std::uint64_t> keys) {
  const auto occurrence = next_occurrence(where, who);
  if (keys.size() < 2) return 0;
  if (from_list_) return listed(where, who, occurrence, keys.size());
  const auto common = noise(where, who, occurrence);
  const auto height = [&](std::uint64_t key) { return mix(common ^ mix(key + 1)); };
  const auto highest = std::ranges::max_element(keys, {}, height);
  return note(where, who, occurrence, static_cast<std::uint64_t>(highest - keys.begin()));
}

bool choices::chance(site where, std::uint32_t who, std::uint32_t per_million) {
  if (per_million == 0) return false;
  const auto occurrence = next_occurrence(where, who);
  if (from_list_)
    return note(where, who, occurrence, listed_.contains(key_of(where, who, occurrence)) ? 1 : 0) !=
           0;
  const auto drawn = static_cast<wide>(noise(where, who, occurrence)) * 1'000'000 >> 64;
  return note(where, who, occurrence, drawn < per_million ? 1 : 0) != 0;
}

std::uint64_t choices::bits(std::uint32_t who) {
  return noise(site::entropy, who, next_occurrence(site::entropy, who));
}

}  // namespace troupe::testing
