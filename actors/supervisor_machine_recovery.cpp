// How the supervisor machine goes from a generation that failed to the next one.
#include "actors/supervisor_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using supervision::phase;

namespace {

// Whether another attempt could end differently.
bool curable(const failure& what, const elastic_options& elastic) {
  switch (what.kind) {
    case failure_kind::aborted:
    case failure_kind::session_closed:
    case failure_kind::actor_error:
    case failure_kind::unexpected_message: return false;
    default: break;
  }
  switch (what.code) {
    case errc::bad_usage:
    case errc::bad_configuration:
    case errc::checkpoint:
    case errc::device:
    case errc::internal: return false;
    default: break;
  }
  return what.kind != failure_kind::exception || what.follows ||
         elastic.exceptions == elastic_options::on_exception::restart;
}

bool is_left(const member& m) { return !m.gone && !m.abandoned; }

}  // namespace

bool supervisor_machine::may_restart() const {
  if (must_end_ || ended_.size() >= static_cast<std::size_t>(rules_.elastic.max_restarts))
    return false;
  const auto fine = [&](const failure& f) { return curable(f, rules_.elastic); };
  return fine(*first_) && std::ranges::all_of(others_, fine) &&
         !sometimes(comes_back(*first_), coverage_point::crash_loop);
}

// The generation before ended in the same way, and no step was committed since. SIGKILL comes from
// outside of the process: the budget bounds it.
bool supervisor_machine::comes_back(const failure& what) const {
  if (ended_.empty() || committed_ > committed_at_end_ || what.signal == "SIGKILL") return false;
  const auto& before = *ended_.back().ended_by;
  // An exception may be thrown on every rank, and each time another one is the first.
  const bool anywhere = what.kind == failure_kind::exception;
  return what.kind == before.kind && what.type == before.type && what.hook == before.hook &&
         (anywhere || what.rank == before.rank);
}

void supervisor_machine::handle(const supervision::durable& e, actions&) {
  durable_ = std::max(durable_, e.step);
}

// A job that can restart does not fail because a rank is lost when all steps are done.
bool supervisor_machine::comes_too_late(const failure& what) const {
  return rules_.elastic.enabled() && done_ && !first_ && phase_ == phase::tearing && what.follows;
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
    what.follows = true;
    others_.push_back(std::move(what));
    members_.abandon(m);
    members_.close(m);
    announce(lifecycle_kind::survivor, out, members_.rank_of(m), {{"what", m.unresponsive}});
    out.emplace_back(supervision::abandon{members_.rank_of(m)});
  }
  if (over_) return start_teardown(out);
  close_if_all_closed(out);
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
    if (base_.number > 0 && is_left(m) && m.point.number == base_.number &&
        m.digest == base_digest_)
      all.push_back(members_.rank_of(m));
  return all;
}

supervision::generation_end supervisor_machine::record() const {
  supervision::generation_end one{generation_, base_.loop.steps, redone_, first_};
  if (one.ended_by) one.ended_by->others = others_;
  return one;
}

// Every member has closed, or is gone or abandoned.
void supervisor_machine::restart(actions& out) {
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
  const auto holding = holders();
  sometimes(base_.number == 0 && furthest > 0, coverage_point::no_holder);
  sometimes(base_.number > 0 && holding.size() < members_.size(), coverage_point::state_restored);
  ended_.push_back(std::move(over));
  committed_at_end_ = committed_;
  redone_ = std::max<std::int64_t>(0, furthest - base_.loop.steps);
  failures_before_ += 1 + others_.size();
  first_.reset();
  others_.clear();
  for (const auto& m : members_)
    if (m.abandoned && !m.gone && !rules_.kills) survivors_.push_back(m.unresponsive);
  waits_ = asked_ = 0;
  progressed_ = proposed_ = close_sent_ = false;
  over_ = orderly_ = true;
  named_.reset();
  ended_by_ = stop_reason::none;
  const auto held = base_.number > 0 ? base_.loop.steps : 0;
  for (const auto rank : members_.begin_generation(held, committed_)) start(members_.at(rank), out);
  form(holding, out);
}

}  // namespace troupe
