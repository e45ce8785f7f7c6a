// How the supervisor machine goes from a generation that failed to the next one.
#include "actors/supervisor_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using supervision::phase;

namespace {

bool is_left(const member& m) { return !m.gone && !m.abandoned; }

}  // namespace

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
         generation_ > generation_id{1} && base_.number == 0;
}

// A newer checkpoint is durable than the one that the ranks were to begin with, so that one may be
// removed. The ranks train none meanwhile, so this ends when the checkpointer has no snapshot left.
bool supervisor_machine::is_free() const {
  return failures_.first() && checkpoint_was_replaced(*failures_.first()) &&
         durable_ > base_.loop.steps;
}

// A process for the ranks of a lost one could not be started, and the time to wait has not passed.
bool supervisor_machine::waits_for_processes() const {
  return placements_.any() && generation_ > generation_id{1} &&
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

failure supervisor_machine::other_state(const member& m, const std::string& digest) const {
  auto what = describe(user_error(
      errc::job_failed,
      fmt::format("the state of rank {} at step {} differs from that of the other ranks: its "
                  "digest is {}, theirs is {}",
                  members_.rank_of(m), base_.loop.steps, digest, base_digest_)));
  what.rank = members_.rank_of(m);
  what.step = base_.loop.steps;
  what.generation = generation_.value();
  return what;
}

// The closing deadline has passed.
void supervisor_machine::give_up_unclosed(actions& out) {
  const bool planned = !failures_.first();
  for (auto& m : members_) {
    if (!sometimes(!m.closed, coverage_point::closing_survivor)) continue;
    mark_unresponsive(m, over_ ? "on_exception" : "close_generation");
    if (over_) continue;
    auto what = make_failure(failure_kind::deadline,
                             fmt::format("{}: the rank is replaced", m.unresponsive));
    what.id = next_failure();
    what.rank = members_.rank_of(m);
    what.step = m.held;
    what.generation = generation_.value();
    what.follows = failures_.first().has_value();
    if (planned) {
      fail(std::move(what), out);
      if (over_) return;  // the ranks have more time, to run on_exception
    } else {
      failures_.add_other(std::move(what));
    }
    members_.abandon(m);
    members_.close(m);
    announce(lifecycle_kind::survivor, out, members_.rank_of(m), {{"what", m.unresponsive}});
    out.emplace_back(supervision::abandon{members_.rank_of(m)});
    abandon_process(m, out);
  }
  if (over_) return start_teardown(out);
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

// The members that are left have reported the points that they hold. The base is the highest one,
// with the state that most of them have. Returns what is wrong when there is no such majority.
std::optional<std::string> supervisor_machine::agree_on_base() {
  resume_point highest;
  std::map<std::string, std::size_t> votes;
  for (const auto& m : members_) {
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
  base_ = std::move(highest);
  base_digest_ = most.first;
  if (all == 0 || 2 * most.second > all) return std::nullopt;
  return fmt::format("the ranks hold different states of step {}, with the digests {} and {}",
                     base_.loop.steps, votes.begin()->first, votes.rbegin()->first);
}

std::vector<std::int32_t> supervisor_machine::holders() const {
  std::vector<std::int32_t> all;
  for (const auto& m : members_)
    if (base_.number > 0 && is_left(m) && !m.moves && m.point.number == base_.number &&
        m.digest == base_digest_)
      all.push_back(members_.rank_of(m));
  return all;
}

// The number of processes that run ranks. Each rank that is a thread counts as one process.
std::int32_t supervisor_machine::working_processes() const {
  std::set<std::int32_t> processes;
  for (const auto& m : members_)
    processes.insert(placements_.any() ? m.process : members_.rank_of(m));
  return static_cast<std::int32_t>(processes.size());
}

supervision::generation_end supervisor_machine::record() const {
  supervision::generation_end one{generation_, base_.loop.steps, redone_, 0, failures_.whole()};
  one.ranks = working_processes();
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
      failures_.first() && pause.count() > 0 && !resting_) {
    resting_ = true;
    return arm_deadline(pause, out);
  }
  resting_ = false;
  if (failures_.first()) count_restart(out);
  auto over = record();
  const auto furthest = std::ranges::max_element(members_, {}, &member::held)->held;
  if (auto differs = agree_on_base()) {
    must_end_ = true;
    auto what = describe(internal_error(std::move(*differs)));
    what.generation = generation_.value();
    return fail(std::move(what), out);
  }
  if (base_.number == 0) {  // the ranks begin at the newest checkpoint
    base_.loop.steps = durable_;
    committed_ = std::min(committed_, durable_);
  }
  const bool planned = wanted() != membership_change::none;
  sometimes(failures_.first() && planned, coverage_point::change_with_failure);
  choose_moves();
  const auto holding = holders();
  sometimes(base_.number == 0 && furthest > 0, coverage_point::no_holder);
  sometimes(base_.number > 0 && holding.size() < members_.size(), coverage_point::state_restored);
  ended_.push_back(std::move(over));
  if (failures_.first()) budget_.begin(committed_);
  redone_ = std::max<std::int64_t>(0, furthest - base_.loop.steps);
  failures_.begin_generation();
  for (const auto& m : members_)
    if (m.abandoned && !m.gone && !placements_.any()) survivors_.push_back(m.unresponsive);
  waits_ = asked_ = 0;
  proposed_ = close_sent_ = false;
  over_ = orderly_ = true;
  named_.reset();
  ended_by_ = stop_reason::none;
  const auto held = base_.number > 0 ? base_.loop.steps : 0;
  leave_old_processes(out);
  replace(members_.begin_generation(held, committed_), out);
  end_left_processes(out);
  form(holding, out);
}

// Starts new incarnations of these ranks. Those of one process stay together where that is
// possible. Those that leave a process which stays move in parts of the size that a process has.
void supervisor_machine::replace(const std::vector<std::int32_t>& ranks, actions& out) {
  const bool none_starts = budget_.waits();
  const auto all = static_cast<std::int32_t>(members_.size());
  const auto share = std::max(1, all / std::max(1, placements_.target()));
  std::map<std::int32_t, std::int32_t> moved;                                       // by process
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> lost;  // and part
  for (const auto rank : ranks) {
    const auto process = members_.at(rank).process;
    const auto* home = placements_.find(process);
    const auto part = home && !home->leaving ? moved[process]++ / share : 0;
    lost[{process, part}].push_back(rank);
  }
  std::vector<std::int32_t> homes;
  for (const auto& m : members_)
    if (std::ranges::find(ranks, members_.rank_of(m)) == ranks.end()) homes.push_back(m.process);
  for (const auto& [from, together] : lost) {
    std::vector<std::int32_t> started;
    std::vector<std::int32_t> chosen(together.size(), from.first);
    if (placements_.any())
      chosen = placements_.homes_for(together.size(), homes, none_starts, started);
    for (const auto number : started) start(number, out);
    for (std::size_t i = 0; i < together.size(); ++i)
      start(members_.at(together[i]), chosen[i], out);
    homes.insert(homes.end(), chosen.begin(), chosen.end());
  }
}

}  // namespace troupe
