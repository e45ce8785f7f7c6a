// How the supervisor machine changes the membership without a failure: a process wants to leave, or
// the caller scales. All ranks pause right after one step; the generation closes; and in the next
// one the ranks that move have a new incarnation in another process. docs/elastic.md has the rest.
#include "actors/supervisor_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using supervision::phase;

// Points are kept, the other ranks have the state that a rank needs after its move, and processes
// can be started.
bool supervisor_machine::may_change() const {
  return placements_.any() && !rules_.fixed && rules_.elastic.enabled() && !rules_.has_result &&
         members_.size() > 1;
}

bool supervisor_machine::lives_in(std::int32_t process) const {
  return std::ranges::any_of(members_, [&](const member& m) { return m.process == process; });
}

bool supervisor_machine::leaves(const member& m) const {
  const auto* home = placements_.find(m.process);
  return home && home->leaving;
}

// What the next generation is to change. A change that cannot be now waits for the next generation.
membership_change supervisor_machine::wanted() const {
  if (!may_change()) return membership_change::none;
  if (std::ranges::any_of(members_, [&](const member& m) { return leaves(m); }))
    return membership_change::left;
  return scales_ ? membership_change::scaled : membership_change::none;
}

void supervisor_machine::refuse(std::string what, actions& out) {
  sometimes(true, coverage_point::change_refused);
  auto why = describe(user_error(errc::bad_usage, std::move(what)));
  why.generation = generation_.value();
  handle(supervision::trouble{std::move(why), false}, out);
}

void supervisor_machine::handle(const process_changed& e, actions& out) {
  if (e.job != job_ || !placements_.any()) return;
  switch (e.how) {
    case process_changed::change::ready: return placements_.ready(e.number);
    case process_changed::change::leaves: return leave(e.number, out);
    case process_changed::change::gone: break;
  }
  const auto* found = placements_.find(e.number);
  const bool spare = found && found->spare && found->ready;
  placements_.lost(e.number);
  if (spare && phase_ == phase::active)
    for (const auto one : placements_.refill()) start(one, out);
  flush_if_all_gone(out);
}

void supervisor_machine::leave(std::int32_t process, actions& out) {
  const auto* found = placements_.find(process);
  if (!found || found->leaving || phase_ >= phase::tearing) return;
  if (lives_in(process) && !may_change())
    return refuse(fmt::format("process {} was asked to leave and stays: only a fit with child "
                              "processes, several ranks and elastic.max_restarts can move ranks",
                              process),
                  out);
  placements_.leave(process);
  if (!lives_in(process))
    out.emplace_back(supervision::end_process{process});
  else if (phase_ == phase::active && !proposed_)
    propose(out);
}

void supervisor_machine::handle(const request_scale& e, actions& out) {
  if (phase_ >= phase::tearing) return;
  if (!may_change())
    return refuse(
        "the job cannot be scaled: only a fit with child processes, several shards and "
        "elastic.max_restarts can move ranks",
        out);
  const auto least = rules_.elastic.min_ranks;
  const auto most = static_cast<std::int32_t>(members_.size());
  if (e.ranks < least || e.ranks > most)
    return refuse(fmt::format("the job cannot be scaled to {} ranks: it has {} shards, and "
                              "elastic.min_ranks is {}",
                              e.ranks, most, least),
                  out);
  if (e.ranks == placements_.target() && e.ranks == placements_.working()) return;
  placements_.scale(e.ranks);
  scales_ = true;
  if (phase_ == phase::active && !proposed_) propose(out);
}

// Closes the generation once every rank pauses. A rank that ended before that step has finished.
void supervisor_machine::change_if_held(actions& out) {
  if (phase_ != phase::active || !named_ || stop_ != stop_reason::none) return;
  if (members_.least_held() < *named_) return;
  phase_ = phase::closing;
  orderly_ = false;
  announce(lifecycle_kind::generation_closing, out, -1,
           {{"why", std::string{to_string(wanted())}}});
  send_close(out);
}

failure supervisor_machine::why_closed() const {
  if (failures_.first()) return *failures_.first();
  failure change;
  change.what = "the membership changes";
  change.generation = generation_.value();
  return change;
}

// Needs the base. When all ranks that hold it would move, one of them stays and moves with the next
// change, because the others receive the state from it.
void supervisor_machine::choose_moves() {
  if (!may_change()) return;
  const auto all = holders();
  if (scales_) move_for_scaling();
  scales_ = false;
  for (auto& m : members_) m.moves = (m.moves || leaves(m)) && !m.gone && !m.abandoned;
  const auto moves = [&](std::int32_t rank) { return members_.at(rank).moves; };
  const bool none_stays = !all.empty() && std::ranges::all_of(all, moves);
  if (sometimes(none_stays, coverage_point::one_rank_stays)) members_.at(all.front()).moves = false;
  sometimes(std::ranges::any_of(members_, &member::moves), coverage_point::rank_moved);
}

// Fewer processes: those that were started last leave. More: each keeps its share of the ranks, and
// the other ranks move.
void supervisor_machine::move_for_scaling() {
  const auto target = placements_.target();
  const auto works = [](const place& p) { return !p.spare && !p.leaving; };
  const auto ranks = static_cast<std::int32_t>(members_.size());
  for (auto more = placements_.working() - target; more > 0; --more) {
    const auto all = placements_.all();
    placements_.leave(std::find_if(all.rbegin(), all.rend(), works)->number);
  }
  if (placements_.working() == target) return;
  std::int32_t index = 0;
  for (const auto& p : placements_.all()) {
    if (!works(p)) continue;
    auto keeps = ranks / target + (index++ < ranks % target ? 1 : 0);
    for (auto& m : members_)
      if (m.process == p.number && keeps-- <= 0) m.moves = true;
  }
}

bool supervisor_machine::is_of_moved_rank(const fence& at) {
  return at.job == job_ && at.generation < generation_ && !members_.find(at.incarnation);
}

// The old incarnation of a rank that has moved ends while the job goes on: the job does not fail
// with it. Reports may be repeated.
void supervisor_machine::report_of_moved_rank(const failure& what, actions& out) {
  if (!what.id || !failures_.is_late(what.id)) handle(supervision::trouble{what, false}, out);
}

// Takes down the incarnations that stay behind. Their answers are no member's.
void supervisor_machine::leave_old_processes(actions& out) {
  for (auto& m : members_)
    if (m.moves)
      out.emplace_back(supervision::tell{members_.rank_of(m), tear_down{fence_for(m), false}});
}

// Ending a process again changes nothing.
void supervisor_machine::end_left_processes(actions& out) {
  for (const auto& p : placements_.all())
    if (p.leaving && !lives_in(p.number)) out.emplace_back(supervision::end_process{p.number});
}

}  // namespace troupe
