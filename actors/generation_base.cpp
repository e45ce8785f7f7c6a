#include "actors/generation_base.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

namespace troupe {

namespace {

bool is_left(const member& m) { return !m.gone && !m.abandoned; }

}  // namespace

std::vector<std::int32_t> generation_base::holders(const membership& members) const {
  std::vector<std::int32_t> all;
  for (const auto& m : members)
    if (held() && is_left(m) && !m.moves && m.point.number == point.number && m.digest == digest)
      all.push_back(members.rank_of(m));
  return all;
}

agreed_base agree_on_base(const membership& members) {
  resume_point highest;
  std::map<std::string, std::size_t> votes;
  for (const auto& m : members) {
    if (!is_left(m) || m.point.number == 0 || m.point.number < highest.number) continue;
    if (m.point.number > highest.number) votes.clear();
    highest = m.point;
    ++votes[m.digest];
  }
  std::size_t all = 0;
  std::pair<std::string, std::size_t> most;
  for (const auto& [digest, count] : votes) {
    all += count;
    if (count > most.second) most = {digest, count};
  }
  agreed_base agreed{{std::move(highest), most.first}, {}};
  if (all == 0 || 2 * most.second > all) return agreed;
  agreed.differs =
      fmt::format("the ranks hold different states of step {}, with the digests {} and {}",
                  agreed.base.steps(), votes.begin()->first, votes.rbegin()->first);
  return agreed;
}

void generation_state::add_to(stable_hasher& hash) const {
  hash.add(base.point.number).add(base.steps()).add(std::string_view{base.digest}).add(redone);
  hash.add(waits).add(asked).add(proposed).add(named).add(close_sent).add(over).add(orderly);
  hash.add(resting).add(ended_by).add(spares_lost);
}

}  // namespace troupe
