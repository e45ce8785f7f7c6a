#include "actors/placements.hpp"

#include <algorithm>

#include "troupe/detail/coverage.hpp"

namespace troupe {

std::int32_t placements::add(bool spare) {
  place one;
  one.number = next_++;
  one.spare = spare;
  one.started = now_;
  all_.push_back(one);
  return one.number;
}

std::vector<std::int32_t> placements::begin(std::int32_t world) {
  std::vector<std::int32_t> homes(static_cast<std::size_t>(world), 0);
  if (!any()) return homes;
  const auto processes = std::min(rules_.processes, world);
  for (std::int32_t i = 0; i < processes; ++i) add(false);
  std::int32_t rank = 0;
  for (std::int32_t i = 0; i < processes; ++i)
    for (auto n = world / processes + (i < world % processes ? 1 : 0); n > 0; --n)
      homes[static_cast<std::size_t>(rank++)] = i;
  return homes;
}

const place* placements::find(std::int32_t number) const {
  const auto found = std::ranges::find(all_, number, &place::number);
  return found == all_.end() ? nullptr : &*found;
}

void placements::ready(std::int32_t number) {
  const auto found = std::ranges::find(all_, number, &place::number);
  if (found != all_.end()) found->ready = true;
}

void placements::warm(std::int32_t number) {
  const auto found = std::ranges::find(all_, number, &place::number);
  if (found != all_.end()) found->ready = found->warm = true;
}

bool placements::lost(std::int32_t number) {
  return std::erase_if(all_, [&](const place& p) { return p.number == number; }) > 0;
}

void placements::leave(std::int32_t number) {
  const auto found = std::ranges::find(all_, number, &place::number);
  if (found == all_.end()) return;
  found->leaving = true;
  found->spare = false;
}

std::int32_t placements::working() const {
  return static_cast<std::int32_t>(
      std::ranges::count_if(all_, [](const place& p) { return !p.spare && !p.leaving; }));
}

std::int32_t placements::wanted(starting how) const {
  const bool fewer = how == starting::last_resort ||
                     (how == starting::by_loss && rules_.on_loss == elastic_options::loss::shrink);
  return fewer ? std::min(rules_.least, target_) : target_;
}

void placements::give_up_spares() {
  for (auto& p : all_) {
    const bool late = p.spare && !p.ready && !rules_.fixed && now_ - p.started > rules_.start;
    if (sometimes(late, coverage_point::spare_given_up)) leave(p.number);
  }
}

// Takes a spare that is warm. Without one: nothing if `warm`, else the first spare that started.
std::optional<std::int32_t> placements::take_spare(bool warm) {
  const auto is_spare = [](const place& p) { return p.spare; };
  auto found = std::ranges::find_if(all_, [](const place& p) { return p.spare && p.warm; });
  if (found == all_.end() && !warm) found = std::ranges::find_if(all_, is_spare);
  if (found == all_.end()) return std::nullopt;
  sometimes(true, coverage_point::spare_taken);
  found->spare = false;
  return found->number;
}

std::vector<std::int32_t> placements::homes_for(std::size_t ranks, std::vector<std::int32_t> homes,
                                                starting how, std::vector<std::int32_t>& started) {
  give_up_spares();
  const bool starts = working() == 0 || working() < wanted(how);
  std::optional<std::int32_t> home = working() < target_ ? take_spare(!starts) : std::nullopt;
  if (rules_.fixed && !home && working() == 0)
    throw internal_error("no process is left for the ranks of a lost one");
  if (!rules_.fixed && !home && starts) {
    sometimes(working() > 0 && how == starting::by_loss &&
                  rules_.on_loss == elastic_options::loss::shrink,
              coverage_point::least_processes);
    home = add(false);
    started.push_back(*home);
  }
  if (home) return std::vector<std::int32_t>(ranks, *home);
  // Each rank goes to the process with the fewest of them.
  sometimes(true, coverage_point::ranks_spread);
  std::vector<std::int32_t> chosen;
  while (chosen.size() < ranks) {
    const place* best = nullptr;
    std::ptrdiff_t fewest = 0;
    for (const auto& p : all_) {
      if (p.spare || p.leaving) continue;
      const auto here = std::ranges::count(homes, p.number);
      if (best && here >= fewest) continue;
      best = &p;
      fewest = here;
    }
    chosen.push_back(best->number);
    homes.push_back(best->number);
  }
  return chosen;
}

std::vector<std::int32_t> placements::refill() {
  std::vector<std::int32_t> started;
  if (rules_.fixed && next_ > rules_.processes) return started;  // they were started
  auto spares = std::ranges::count_if(all_, [](const place& p) { return p.spare; });
  for (; spares < rules_.spares; ++spares) started.push_back(add(true));
  return started;
}

bool placements::too_few() const {
  const auto left = std::ranges::count_if(all_, [](const place& p) { return !p.leaving; });
  return rules_.fixed && left < std::max(1, rules_.least);
}

}  // namespace troupe
