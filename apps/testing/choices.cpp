#include "apps/testing/choices.hpp"

#include <algorithm>
#include <ostream>

#include "troupe/detail/data_order.hpp"

namespace troupe::testing {

namespace {

__extension__ using wide = unsigned __int128;

std::uint64_t key_of(site where, std::uint32_t who, std::uint32_t occurrence) {
  return static_cast<std::uint64_t>(where) << 56 | static_cast<std::uint64_t>(who) << 32 |
         occurrence;
}

bool is_below(std::uint64_t noise, std::uint32_t per_million) {
  return static_cast<wide>(noise) * 1'000'000 >> 64 < per_million;
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
    case site::stale_message: return "old_word";
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

// Separate from `next`, which every draw calls.
[[gnu::noinline]] void choices::begin(site where, std::uint32_t who) {
  auto& all = streams_[static_cast<std::size_t>(where)];
  if (all.size() <= who) all.resize(who + 1);
  all[who].noise = mix(seed_ ^ key_of(where, who, 0));
}

// Fast path: the stream has been used, and values are neither read from a list nor recorded.
[[gnu::always_inline]] inline choices::stream* choices::plain(site where, std::uint32_t who) {
  auto& all = streams_[static_cast<std::size_t>(where)];
  if (all.size() <= who || all[who].occurred == 0 || from_list_ || recording_) [[unlikely]]
    return nullptr;
  return &all[who];
}

[[gnu::always_inline]] inline choices::next_draw choices::next(site where, std::uint32_t who) {
  const auto& all = streams_[static_cast<std::size_t>(where)];
  if (all.size() <= who || all[who].occurred == 0) [[unlikely]]
    begin(where, who);
  auto& mine = streams_[static_cast<std::size_t>(where)][who];
  const auto occurrence = mine.occurred++;
  return {occurrence, mix(mine.noise + occurrence)};
}

[[gnu::always_inline]] inline void choices::count(std::uint64_t key, std::uint64_t value) {
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
  ++draws_;
  // Most values are 0; later non-zero values still depend on their position.
  digest_ = value == 0 ? digest_ + key * odd : mix(digest_ ^ key) + value;
}

std::uint64_t choices::note(site where, std::uint32_t who, std::uint32_t occurrence,
                            std::uint64_t value) {
  count(key_of(where, who, occurrence), value);
  if (value != 0 && recording_) taken_.push_back({where, who, occurrence, value});
  return value;
}

std::uint64_t choices::draw(site where, std::uint32_t who, std::uint64_t bound) {
  auto* const known = plain(where, who);
  if (!known || bound < 2) return draw_slowly(where, who, bound);
  const auto occurrence = known->occurred++;
  const auto drawn =
      static_cast<std::uint64_t>(static_cast<wide>(mix(known->noise + occurrence)) * bound >> 64);
  count(key_of(where, who, occurrence), drawn);
  return drawn;
}

[[gnu::noinline]] std::uint64_t choices::draw_slowly(site where, std::uint32_t who,
                                                     std::uint64_t bound) {
  const auto [occurrence, noise] = next(where, who);
  if (bound < 2) return 0;
  if (from_list_) return listed(where, who, occurrence, bound);
  const auto drawn = static_cast<wide>(noise) * bound >> 64;
  return note(where, who, occurrence, static_cast<std::uint64_t>(drawn));
}

std::uint64_t choices::listed(site where, std::uint32_t who, std::uint32_t occurrence,
                              std::uint64_t bound) {
  const auto found = listed_.find(key_of(where, who, occurrence));
  const auto value = found == listed_.end() ? 0 : std::min(found->second, bound - 1);
  return note(where, who, occurrence, value);
}

std::uint64_t choices::pick(site where, std::uint32_t who, std::span<const std::uint64_t> keys) {
  const auto [occurrence, common] = next(where, who);
  if (keys.size() < 2) return 0;
  if (from_list_) return listed(where, who, occurrence, keys.size());
  const auto height = [noise = common](std::uint64_t key) { return mix(noise ^ mix(key + 1)); };
  const auto highest = std::ranges::max_element(keys, {}, height);
  return note(where, who, occurrence, static_cast<std::uint64_t>(highest - keys.begin()));
}

bool choices::chance(site where, std::uint32_t who, std::uint32_t per_million) {
  if (per_million == 0) return false;
  auto* const known = plain(where, who);
  if (!known) return chance_slowly(where, who, per_million);
  const auto occurrence = known->occurred++;
  const bool yes = is_below(mix(known->noise + occurrence), per_million);
  count(key_of(where, who, occurrence), yes ? 1 : 0);
  return yes;
}

[[gnu::noinline]] bool choices::chance_slowly(site where, std::uint32_t who,
                                              std::uint32_t per_million) {
  const auto [occurrence, noise] = next(where, who);
  if (from_list_) return listed(where, who, occurrence, 2) != 0;
  return note(where, who, occurrence, is_below(noise, per_million) ? 1 : 0) != 0;
}

std::uint64_t choices::bits(std::uint32_t who) { return next(site::entropy, who).noise; }

}  // namespace troupe::testing
