// How the supervisor machine goes from a generation that failed to the next one.
#include "actors/moves.hpp"
#include "actors/supervisor_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using supervision::phase;

namespace {

// The process of an abandoned rank is killed, and the other ranks in it end, too.
void abandon_process(std::int32_t process, membership& members, placements& places,
                     outgoing_actions& out) {
  if (!places.any()) return;
  places.lost(process);
  for (auto& m : members) {
    if (m.process != process || m.gone || m.abandoned) continue;
    members.abandon(m);
    members.close(m);
    out.abandon(m);
  }
}

std::string waiting_text(const elastic_options& rules, const failure& why) {
  return fmt::format("waits at most {} s for a process: {}",
                     std::chrono::duration_cast<std::chrono::seconds>(rules.wait).count(),
                     why.what);
}

}  // namespace

recovery::situation supervisor_machine::situation() const {
  return {rules_,           members_,          current_.base,        failures_,
          committed_.steps, placements_.any(), placements_.too_few()};
}

void supervisor_machine::handle(const supervision::durable& e, actions&) {
  // A late checkpoint of a branch that was given up may have had a higher step.
  recovery_.saved(e.at);
}

// The closing deadline has passed.
void supervisor_machine::give_up_unclosed(actions& out) {
  const bool planned = !failures_.first();
  for (auto& m : members_) {
    if (!sometimes(!m.closed, coverage_point::closing_survivor)) continue;
    members_.mark_unresponsive(m, current_.over ? "on_exception" : "close_generation");
    if (current_.over) continue;
    auto what = make_failure(failure_kind::deadline,
                             fmt::format("{}: the rank is replaced", m.unresponsive));
    what.id = next_failure();
    what.rank = members_.rank_of(m);
    what.step = current_.base.reached_by(m);
    what.generation = generation().value();
    what.follows = failures_.first().has_value();
    if (planned) {
      fail(std::move(what), out);
      if (current_.over) return;  // the ranks have more time, to run on_exception
    } else {
      failures_.add_other(std::move(what));
    }
    members_.abandon(m);
    members_.close(m);
    out.announce(lifecycle_kind::survivor, members_.rank_of(m), {{"what", m.unresponsive}});
    out.abandon(m);
    abandon_process(m.process, members_, placements_, out);
  }
  if (current_.over) return start_teardown(out);
  close_if_all_closed(out);
}

supervision::generation_end supervisor_machine::record() const {
  supervision::generation_end one{generation(), current_.base.steps(), current_.redone, 0,
                                  failures_.whole()};
  one.ranks = working_processes(members_, placements_);
  if (!failures_.first() && phase_ == phase::closing) one.changed = wanted();
  return one;
}

// Every member has closed, or is gone or abandoned.
void supervisor_machine::restart(actions& out) {
  if (placements_.too_few()) {  // because some did not answer
    members_.reopen();
    return send_close(out);
  }
  if (const auto pause = recovery_.rest(committed_.steps);
      failures_.first() && pause.count() > 0 && !current_.resting) {
    current_.resting = true;
    return out.arm(pause);
  }
  current_.resting = false;
  if (failures_.first() && recovery_.count_restart(situation()))  // a planned change is no restart
    out.announce(lifecycle_kind::trouble, -1,
                 {{"what", waiting_text(rules_.elastic, *failures_.first())}});
  auto over = record();
  const auto furthest = std::ranges::max_element(members_, {}, &member::held)->held.steps;
  auto agreed = agree_on_base(members_);
  current_.base = std::move(agreed.base);
  if (agreed.differs) {
    recovery_.end_job();
    auto what = describe(internal_error(std::move(*agreed.differs)));
    what.generation = generation().value();
    return fail(std::move(what), out);
  }
  const auto before = committed_.steps;
  if (!current_.base.held()) {  // the ranks begin at the newest checkpoint
    current_.base.point.loop.steps = recovery_.durable().steps;
    committed_ = recovery_.durable();
  }
  const bool planned = wanted() != membership_change::none;
  sometimes(failures_.first() && planned, coverage_point::change_with_failure);
  if (may_change())
    choose_moves(members_, placements_, current_.base.holders(members_),
                 std::exchange(scales_, false));
  const auto holding = current_.base.holders(members_);
  sometimes(!current_.base.held() && furthest > 0, coverage_point::no_holder);
  sometimes(current_.base.held() && holding.size() < members_.size(),
            coverage_point::state_restored);
  recovery_.add(std::move(over), committed_.steps);
  failures_.begin_generation();
  // The thread of an abandoned rank may still run, although its actor has ended.
  for (const auto& m : members_)
    if (m.abandoned && !placements_.any()) survivors_.push_back(m.unresponsive);
  generation_state next;
  next.base = std::move(current_.base);
  next.redone = std::max<std::int64_t>(0, furthest - next.base.steps());
  current_ = std::move(next);
  move_ranks(out);
  form(holding, out);
  if (committed_.steps != before) out.add(supervision::commit{committed_.steps});
}

}  // namespace troupe
