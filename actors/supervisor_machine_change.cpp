// How the supervisor machine changes the membership without a failure: a process wants to leave, or
// the caller scales. All ranks pause right after one step; the generation closes; and in the next
// one the ranks that move have a new incarnation in another process. docs/elastic.md has the rest.
#include "actors/moves.hpp"
#include "actors/supervisor_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using supervision::phase;

namespace {

// For a change that the caller or a process asked for, and that this job cannot make.
supervision::trouble refused(std::string what, generation_id generation) {
  sometimes(true, coverage_point::change_refused);
  auto why = describe(user_error(errc::bad_usage, std::move(what)));
  why.generation = generation.value();
  return {std::move(why), false};
}

std::string spare_text(const failure& why, bool again) {
  return fmt::format("a spare process ended: {}; {}", why.what,
                     again ? "another one is started"
                           : "as many spares as elastic.max_restarts were replaced, so no other is "
                             "started before the next generation");
}

}  // namespace

// Points are kept, the other ranks have the state that a rank needs after its move, and processes
// can be started.
bool supervisor_machine::may_change() const {
  return placements_.any() && !rules_.fixed && rules_.elastic.enabled() && !rules_.has_result &&
         members_.size() > 1;
}

// What the next generation is to change. A change that cannot be now waits for the next generation.
membership_change supervisor_machine::wanted() const {
  if (!may_change()) return membership_change::none;
  if (any_leaves(members_, placements_)) return membership_change::left;
  return scales_ ? membership_change::scaled : membership_change::none;
}

void supervisor_machine::handle(const process_changed& e, actions& out) {
  if (e.job != members_.job() || !placements_.any()) return;
  switch (e.how) {
    case process_changed::change::ready: return placements_.ready(e.number);
    case process_changed::change::warm: return placements_.warm(e.number);
    case process_changed::change::leaves: return leave(e.number, out);
    case process_changed::change::gone: break;
  }
  const auto* found = placements_.find(e.number);
  const bool spare = found && found->spare;
  placements_.lost(e.number);
  if (spare && phase_ < phase::tearing) {
    // Bounded: what ends spares, a lack of memory for example, may end each of them. While ranks
    // form or close, the next generation starts another one.
    const bool active = phase_ == phase::active;
    const bool again = !active || ++current_.spares_lost <= rules_.elastic.max_restarts;
    out.announce(lifecycle_kind::trouble, -1, {{"what", spare_text(e.what, again)}});
    if (active && again)
      for (const auto one : placements_.refill()) out.start_process(placements_, one);
  }
  flush_if_all_gone(out);
}

void supervisor_machine::leave(std::int32_t process, actions& out) {
  const auto* found = placements_.find(process);
  if (!found || found->leaving || phase_ >= phase::tearing) return;
  if (lives_in(members_, process) && !may_change())
    return handle(
        refused(fmt::format("process {} was asked to leave and stays: only a fit with child "
                            "processes, several ranks and elastic.max_restarts can move ranks",
                            process),
                generation()),
        out);
  placements_.leave(process);
  const bool spare = !lives_in(members_, process);
  if (spare) out.add(supervision::end_process{process});
  if (phase_ != phase::active) return;
  if (!spare && !current_.proposed) propose(out);
  if (spare && ++current_.spares_lost <= rules_.elastic.max_restarts)
    for (const auto one : placements_.refill()) out.start_process(placements_, one);
}

void supervisor_machine::handle(const request_scale& e, actions& out) {
  if (phase_ >= phase::tearing) return;
  if (!may_change())
    return handle(
        refused("the job cannot be scaled: only a fit with child processes, several shards and "
                "elastic.max_restarts can move ranks",
                generation()),
        out);
  const auto least = rules_.elastic.min_ranks;
  const auto most = static_cast<std::int32_t>(members_.size());
  if (e.ranks < least || e.ranks > most)
    return handle(refused(fmt::format("the job cannot be scaled to {} ranks: it has {} shards, and "
                                      "elastic.min_ranks is {}",
                                      e.ranks, most, least),
                          generation()),
                  out);
  if (e.ranks == placements_.target() && e.ranks == placements_.working()) return;
  placements_.scale(e.ranks);
  scales_ = true;
  if (phase_ == phase::active && !current_.proposed) propose(out);
}

// Closes the generation once every rank pauses. A rank that ended before that step has finished.
void supervisor_machine::change_if_held(actions& out) {
  if (phase_ != phase::active || !current_.named || stop_ != stop_reason::none) return;
  if (members_.least_held().steps < *current_.named) return;
  phase_ = phase::closing;
  current_.orderly = false;
  out.announce(lifecycle_kind::generation_closing, -1, {{"why", std::string{to_string(wanted())}}});
  send_close(out);
}

// The old incarnation of a rank that has moved ends while the job goes on: the job does not fail
// with it. Reports may be repeated.
void supervisor_machine::report_of_moved_rank(const failure& what, actions& out) {
  if (!what.id || !failures_.is_late(what.id)) handle(supervision::trouble{what, false}, out);
}

// Needs the base. The incarnations that stay behind are taken down; their answers are no member's.
// The ranks that move, and those that are lost, get new ones. To end a process again changes
// nothing.
void supervisor_machine::move_ranks(actions& out) {
  for (auto& m : members_)
    if (m.moves) out.send(m, tear_down{members_.fence_for(m), false});
  const auto held = current_.base.held() ? progress_of(current_.base.point.loop) : progress{};
  const auto replaced = members_.begin_generation(held, committed_.steps);
  for (const auto& group : new_homes(members_, placements_, replaced, recovery_.waits())) {
    for (const auto number : group.started) out.start_process(placements_, number);
    for (const auto& [rank, process] : group.homes) {
      auto& m = members_.at(rank);
      m.process = process;
      out.start(m);
    }
  }
  for (const auto& p : placements_.all())
    if (p.leaving && !lives_in(members_, p.number)) out.add(supervision::end_process{p.number});
}

}  // namespace troupe
