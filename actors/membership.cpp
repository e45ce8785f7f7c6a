#include "actors/membership.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troupe/detail/coverage.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe {

progress progress_of(const loop_state& loop) { return {loop.steps, loop.epoch, loop.samples}; }

void membership::begin_with(const std::vector<incarnation_id>& incarnations) {
  for (std::size_t r = 0; r < members_.size(); ++r) members_[r].incarnation = incarnations[r];
  behind_ = unprepared_ = unfinished_ = unclosed_ = there_ = members_.size();
  generation_ = generation_.next();
  index();
}

std::vector<std::int32_t> membership::begin_generation(const progress& held,
                                                       std::int64_t committed) {
  std::vector<std::int32_t> replaced;
  for (auto& m : members_) {
    member fresh;
    fresh.incarnation = m.incarnation;
    fresh.process = m.process;
    fresh.held = held;
    if (m.gone || m.abandoned || m.moves) {
      // Incarnations are random numbers, so a hash of one is another.
      do
        fresh.incarnation = incarnation_id{stable_hasher{}.add(fresh.incarnation.value()).digest()};
      while (find(fresh.incarnation) || fresh.incarnation == incarnation_id{});
      replaced.push_back(rank_of(m));
    }
    m = std::move(fresh);
  }
  unprepared_ = unfinished_ = unclosed_ = there_ = members_.size();
  generation_ = generation_.next();
  recount(committed);
  index();
  return replaced;
}

void membership::index() {
  by_incarnation_.clear();
  for (const auto& m : members_) by_incarnation_.emplace(m.incarnation, rank_of(m));
}

member* membership::find(incarnation_id incarnation) {
  const auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? nullptr : &at(found->second);
}

member* membership::sender(const fence& at) {
  const bool here = at.job == job_ && at.generation == generation_;
  auto* found = here ? find(at.incarnation) : nullptr;
  return sometimes(!found || found->gone, coverage_point::fence_refused) ? nullptr : found;
}

bool membership::is_of_former(const fence& at) {
  return at.job == job_ && at.generation < generation_ && !find(at.incarnation);
}

fence membership::fence_for(const member& m) const {
  fence at;
  at.job = job_;
  at.generation = generation_;
  at.incarnation = m.incarnation;
  return at;
}

bool membership::hold(member& m, const progress& now, std::int64_t committed) {
  const bool was_behind = m.held.steps <= committed;
  m.held = std::max(m.held, now);
  return was_behind && m.held.steps > committed && --behind_ == 0;
}

progress membership::least_held() const {
  return std::ranges::min_element(members_, {}, &member::held)->held;
}

void membership::recount(std::int64_t committed) {
  behind_ = static_cast<std::size_t>(
      std::ranges::count_if(members_, [&](const member& m) { return m.held.steps <= committed; }));
}

void membership::prepare(member& m) {
  if (!std::exchange(m.prepared, true)) --unprepared_;
}

void membership::finish(member& m) {
  if (!std::exchange(m.finished, true)) --unfinished_;
}

void membership::close(member& m) {
  if (!std::exchange(m.closed, true)) --unclosed_;
}

void membership::reopen() {
  unclosed_ = 0;
  for (auto& m : members_) {
    m.closed = m.gone;
    if (!m.closed) ++unclosed_;
  }
}

void membership::leave(member& m) {
  if (!m.gone && !m.abandoned) --there_;
  m.gone = m.torn_down = true;
  close(m);
}

void membership::abandon(member& m) {
  if (!m.gone && !m.abandoned) --there_;
  m.abandoned = true;
}

void membership::mark_unresponsive(member& m, std::string_view during) {
  m.unresponsive = fmt::format("rank {}: {}", rank_of(m),
                               m.busy.empty() ? fmt::format("no answer to {}", during) : m.busy);
}

}  // namespace troupe
