#include "actors/moves.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>

#include "troupe/detail/coverage.hpp"

namespace troupe {

namespace {

bool leaves(const member& m, const placements& places) {
  const auto* home = places.find(m.process);
  return home && home->leaving;
}

// Fewer processes: those that were started last leave. More: each keeps its share of the ranks, and
// the other ranks move.
void move_for_scaling(membership& members, placements& places) {
  const auto target = places.target();
  const auto works = [](const place& p) { return !p.spare && !p.leaving; };
  const auto ranks = static_cast<std::int32_t>(members.size());
  for (auto more = places.working() - target; more > 0; --more) {
    const auto all = places.all();
    places.leave(std::find_if(all.rbegin(), all.rend(), works)->number);
  }
  if (places.working() == target) return;
  std::int32_t index = 0;
  for (const auto& p : places.all()) {
    if (!works(p)) continue;
    auto keeps = ranks / target + (index++ < ranks % target ? 1 : 0);
    for (auto& m : members)
      if (m.process == p.number && keeps-- <= 0) m.moves = true;
  }
}

}  // namespace

bool lives_in(const membership& members, std::int32_t process) {
  return std::ranges::any_of(members, [&](const member& m) { return m.process == process; });
}

bool any_leaves(const membership& members, const placements& places) {
  return std::ranges::any_of(members, [&](const member& m) { return leaves(m, places); });
}

std::int32_t working_processes(const membership& members, const placements& places) {
  std::set<std::int32_t> processes;
  for (const auto& m : members) processes.insert(places.any() ? m.process : members.rank_of(m));
  return static_cast<std::int32_t>(processes.size());
}

void choose_moves(membership& members, placements& places, const std::vector<std::int32_t>& holders,
                  bool scales) {
  if (scales) move_for_scaling(members, places);
  for (auto& m : members) m.moves = (m.moves || leaves(m, places)) && !m.gone && !m.abandoned;
  const auto moves = [&](std::int32_t rank) { return members.at(rank).moves; };
  const bool none_stays = !holders.empty() && std::ranges::all_of(holders, moves);
  if (sometimes(none_stays, coverage_point::one_rank_stays))
    members.at(holders.front()).moves = false;
  sometimes(std::ranges::any_of(members, &member::moves), coverage_point::rank_moved);
}

std::vector<moved_group> new_homes(const membership& members, placements& places,
                                   const std::vector<std::int32_t>& ranks, bool none_starts) {
  const auto all = static_cast<std::int32_t>(members.size());
  const auto share = std::max(1, all / std::max(1, places.target()));
  std::map<std::int32_t, std::int32_t> moved;                                       // by process
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> lost;  // and part
  for (const auto rank : ranks) {
    const auto process = members.at(rank).process;
    const auto* home = places.find(process);
    const auto part = home && !home->leaving ? moved[process]++ / share : 0;
    lost[{process, part}].push_back(rank);
  }
  std::vector<std::int32_t> homes;
  for (const auto& m : members)
    if (std::ranges::find(ranks, members.rank_of(m)) == ranks.end()) homes.push_back(m.process);
  std::vector<moved_group> groups;
  for (const auto& [from, together] : lost) {
    auto& group = groups.emplace_back();
    std::vector<std::int32_t> chosen(together.size(), from.first);
    const auto* home = places.find(from.first);
    using starting = placements::starting;
    const auto how = none_starts              ? starting::last_resort
                     : home && !home->leaving ? starting::to_target  // the job grows
                                              : starting::by_loss;
    if (places.any()) chosen = places.homes_for(together.size(), homes, how, group.started);
    for (std::size_t i = 0; i < together.size(); ++i)
      group.homes.emplace_back(together[i], chosen[i]);
    homes.insert(homes.end(), chosen.begin(), chosen.end());
  }
  return groups;
}

}  // namespace troupe
