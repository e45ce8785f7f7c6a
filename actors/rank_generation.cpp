#include "actors/rank_generation.hpp"

#include <algorithm>
#include <string_view>

namespace troupe {

rank_generation rank_generation::of(const form_generation& order) {
  rank_generation made;
  made.world = order.world;
  made.base = order.base;
  made.holders = order.holders;
  made.resume = order.resume;
  return made;
}

bool rank_generation::held_by(std::int32_t rank) const {
  return has_base() && std::ranges::binary_search(holders, rank);
}

void rank_generation::add_to(stable_hasher& hash) const {
  hash.add(world).add(base.number).add(holders.size()).add(std::string_view{resume}).add(overdue);
  hash.add(ended_by).add(std::string_view{failed_with.type}).add(failed_with.step);
  hash.add(std::string_view{first.type}).add(std::string_view{first.what});
  hash.add(over).add(rewinding).add(orderly).add(tear_down_asked);
}

bool next_generation::take(const close_generation& order) {
  if (check(order.at, at_) != fence_verdict::current) return false;
  closed_ = true;
  what_.first = order.first;
  what_.over = order.last;
  return true;
}

form_generation next_generation::formed() const {
  return {at_, what_.world, what_.base, what_.holders, what_.resume};
}

std::optional<close_generation> next_generation::closed() const {
  if (!closed_) return std::nullopt;
  return close_generation{at_, what_.first, what_.over};
}

void next_generation::add_to(stable_hasher& hash) const {
  hash.add(at_.generation.value()).add(closed_);
  what_.add_to(hash);
}

}  // namespace troupe
