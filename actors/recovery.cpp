#include "actors/recovery.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

namespace {

// Ranks that begin at a checkpoint read it while the checkpointer may replace it by a newer one.
bool checkpoint_was_replaced(const recovery::situation& now, const failure& what) {
  return what.code == errc::checkpoint && what.hook == hooks::load_checkpoint::name &&
         now.members.generation() > generation_id{1} && !now.base.held();
}

}  // namespace

bool recovery::needs_unclosed(const situation& now, bool over) const {
  const auto runs = [](const member& m) { return !m.closed && m.answered; };
  if (over) return now.rules.saves && runs(now.members.at(0));
  if (std::ranges::none_of(now.members, runs)) return false;
  if (!now.failures.first()) return true;  // a change: it costs no work
  // How long a rank takes to return to its point, or a snapshot to arrive ahead of the rank's
  // answer, depends on the state's size, not on a fault.
  if (std::ranges::any_of(now.members, [&](const member& m) {
        return runs(m) && (m.arriving || m.busy.starts_with(hooks::rewind::name));
      }))
    return true;
  // A rank that is not waited for takes the others of its process with it.
  const auto ends = [&](const member& m) {
    return now.in_processes && std::ranges::any_of(now.members, [&](const member& other) {
             return other.process == m.process && !other.closed;
           });
  };
  const auto holds = [&](const member& m) {
    return m.closed && !m.gone && m.point.number > 0 && m.point.loop.steps >= now.committed &&
           !ends(m);
  };
  return now.rules.fixed ||
         (now.committed > durable_.steps && std::ranges::none_of(now.members, holds));
}

bool recovery::may_restart(const situation& now) const {
  if (must_end_ || !now.rules.elastic.enabled()) return false;
  if (!now.failures.first()) return true;
  if (sometimes(now.too_few, coverage_point::too_few_processes)) return false;
  const auto cures = [&](const failure& f) {
    return checkpoint_was_replaced(now, f) || curable(f, now.rules.elastic);
  };
  if (!cures(*now.failures.first()) || !std::ranges::all_of(now.failures.others(), cures))
    return false;
  if (waits_for_processes(now) || is_free(now)) return true;
  return budget_.left(now_, now.committed) > 0 &&
         !sometimes(is_crash_loop(now), coverage_point::crash_loop);
}

// A newer checkpoint is durable than the one that the ranks were to begin with, so that one may be
// removed. The ranks train none meanwhile, so this ends when the checkpointer has no snapshot left.
bool recovery::is_free(const situation& now) const {
  return now.failures.first() && checkpoint_was_replaced(now, *now.failures.first()) &&
         durable_.steps > now.base.steps();
}

// A process for the ranks of a lost one could not be started, and the time to wait has not passed.
bool recovery::waits_for_processes(const situation& now) const {
  return now.in_processes && now.members.generation() > generation_id{1} &&
         now.failures.first()->kind == failure_kind::start_failed && budget_.may_wait(now_);
}

// The generation before ended in the same way, and no step was committed since. What comes from
// outside of the process is bounded by the budget.
bool recovery::is_crash_loop(const situation& now) const {
  if (ended_.empty() || budget_.advanced(now.committed) || !ended_.back().ended_by) return false;
  const auto& what = *now.failures.first();
  const auto& before = *ended_.back().ended_by;
  // The steps before a failure are done, though other ranks may not have reported them yet.
  if (what.step > before.step && what.step > now.base.steps()) return false;
  return comes_back(what, before);
}

bool recovery::count_restart(const situation& now) {
  const bool waits = waits_for_processes(now);
  budget_.fail(now_, now.committed, waits || is_free(now));
  return waits && budget_.wait(now_);
}

void recovery::add(supervision::generation_end over, std::int64_t committed) {
  if (over.ended_by) budget_.begin(committed);
  ended_.push_back(std::move(over));
}

std::map<std::string, std::string> recovery::why_forming(std::int64_t committed) const {
  if (ended_.empty()) return {};
  const auto& before = ended_.back();
  const auto cause = before.ended_by ? std::string_view{"failure"} : to_string(before.changed);
  return {{"cause", std::string{cause}},
          {"restarts_left", std::to_string(budget_.left(now_, committed))}};
}

void recovery::add_to(stable_hasher& hash) const {
  hash.add(must_end_).add(aborted_).add(durable_.steps).add(ended_.size());
  hash.add(budget_.committed_at_failure());
}

}  // namespace troupe
