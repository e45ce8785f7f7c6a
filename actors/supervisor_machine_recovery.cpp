// How the supervisor machine goes from a generation that failed to the next one.
#include "actors/supervisor_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using supervision::phase;

bool supervisor_machine::may_restart() const {
  if (must_end_ || !rules_.elastic.enabled()) return false;
  if (!failures_.first()) return true;
  if (rules_.fixed && std::ranges::any_of(members_, &member::gone)) return false;
  const auto fine = [&](const failure& f) {
    return checkpoint_was_replaced(f) || curable(f, rules_.elastic);
  };
  if (!fine(*failures_.first()) || !std::ranges::all_of(failures_.others(), fine)) return false;
  if (waits_for_processes() || is_free()) return true;
  return budget_.left(now_, committed_) > 0 &&
         !sometimes(is_crash_loop(), coverage_point::crash_loop);
}

// Ranks that begin at a checkpoint read it while the checkpointer may replace it by a newer one.
bool supervisor_machine::checkpoint_was_replaced(const failure& what) const {
  return what.code == errc::checkpoint && what.hook == hooks::load_checkpoint::name &&
         generation() > generation_id{1} && !current_.base.held();
}

// A newer checkpoint is durable than the one that the ranks were to begin with, so that one may be
// removed. The ranks train none meanwhile, so this ends when the checkpointer has no snapshot left.
bool supervisor_machine::is_free() const {
  return failures_.first() && checkpoint_was_replaced(*failures_.first()) &&
         durable_ > current_.base.steps();
}

// A process for the ranks of a lost one could not be started, and the time to wait has not passed.
bool supervisor_machine::waits_for_processes() const {
  return placements_.any() && generation() > generation_id{1} &&
         failures_.first()->kind == failure_kind::start_failed && budget_.may_wait(now_);
}

// The generation before ended in the same way, and no step was committed since. What comes from
// outside of the process is bounded by the budget.
bool supervisor_machine::is_crash_loop() const {
  if (ended_.empty() || budget_.advanced(committed_) || !ended_.back().ended_by) return false;
  return comes_back(*failures_.first(), *ended_.back().ended_by);
}

void supervisor_machine::handle(const supervision::durable& e, actions&) {
  durable_ = e.step;  // a late checkpoint of a branch that was given up may have had a higher one
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
    what.step = m.held;
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
    announce(lifecycle_kind::survivor, out, members_.rank_of(m), {{"what", m.unresponsive}});
    out.emplace_back(supervision::abandon{members_.rank_of(m)});
    abandon_process(m, out);
  }
  if (current_.over) return start_teardown(out);
  close_if_all_closed(out);
}

// The process of an abandoned rank is killed, and the other ranks in it end, too.
void supervisor_machine::abandon_process(const member& of, actions& out) {
  if (!placements_.any()) return;
  placements_.lost(of.process);
  for (auto& m : members_) {
    if (m.process != of.process || m.gone || m.abandoned) continue;
    members_.abandon(m);
    members_.close(m);
    out.emplace_back(supervision::abandon{members_.rank_of(m)});
  }
}

supervision::generation_end supervisor_machine::record() const {
  supervision::generation_end one{generation(), current_.base.steps(), current_.redone, 0,
                                  failures_.whole()};
  one.ranks = working_processes(members_, placements_);
  if (!failures_.first() && phase_ == phase::closing) one.changed = wanted();
  return one;
}

// What the observers learn about a generation that follows another one.
std::map<std::string, std::string> supervisor_machine::why_forming() const {
  if (ended_.empty()) return {};
  const auto& before = ended_.back();
  const auto cause = before.ended_by ? std::string_view{"failure"} : to_string(before.changed);
  return {{"cause", std::string{cause}},
          {"restarts_left", std::to_string(budget_.left(now_, committed_))}};
}

// A planned change is no restart.
void supervisor_machine::count_restart(actions& out) {
  const bool waits = waits_for_processes();
  budget_.fail(now_, committed_, waits || is_free());
  if (!waits || !budget_.wait(now_)) return;
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(rules_.elastic.wait);
  announce(lifecycle_kind::trouble, out, -1,
           {{"what", fmt::format("waits at most {} s for a process: {}", limit.count(),
                                 failures_.first()->what)}});
}

// Every member has closed, or is gone or abandoned.
void supervisor_machine::restart(actions& out) {
  if (const auto pause = budget_.rest(committed_);
      failures_.first() && pause.count() > 0 && !current_.resting) {
    current_.resting = true;
    return arm_deadline(pause, out);
  }
  current_.resting = false;
  if (failures_.first()) count_restart(out);
  auto over = record();
  const auto furthest = std::ranges::max_element(members_, {}, &member::held)->held;
  auto agreed = agree_on_base(members_);
  current_.base = std::move(agreed.base);
  if (agreed.differs) {
    must_end_ = true;
    auto what = describe(internal_error(std::move(*agreed.differs)));
    what.generation = generation().value();
    return fail(std::move(what), out);
  }
  if (!current_.base.held()) {  // the ranks begin at the newest checkpoint
    current_.base.point.loop.steps = durable_;
    committed_ = std::min(committed_, durable_);
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
  ended_.push_back(std::move(over));
  if (failures_.first()) budget_.begin(committed_);
  failures_.begin_generation();
  for (const auto& m : members_)
    if (m.abandoned && !m.gone && !placements_.any()) survivors_.push_back(m.unresponsive);
  generation_state next;
  next.base = std::move(current_.base);
  next.redone = std::max<std::int64_t>(0, furthest - next.base.steps());
  current_ = std::move(next);
  move_ranks(out);
  form(holding, out);
}

}  // namespace troupe
