#include "actors/supervisor_machine.hpp"
#include "actors/moves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using supervision::phase;

namespace {

bool over(phase p) {
  return p == phase::flushing_checkpointer || p == phase::flushing_observers || p == phase::done;
}

// Whether the wait for the ranks may be extended once more: none that is missing was silent. A rank
// that waits for a silent one reports that it is busy, too.
bool still_forming(const membership& members, const deadlines& limits, std::uint32_t waits) {
  const auto goes_on = [](const member& m) { return m.prepared || m.answered; };
  return std::ranges::all_of(members, goes_on) && (waits + 1) * limits.form < limits.form_most;
}

// Names the ranks that were silent, or all that are missing when none was. With a hook that has run
// longer than a hook may.
failure not_formed(const membership& members, const deadlines& limits, std::uint32_t waits) {
  const auto was_silent = [](const member& m) { return !m.prepared && !m.answered; };
  const bool any = std::ranges::any_of(members, was_silent);
  std::string missing;
  for (const auto& m : members)
    if (any ? was_silent(m) : !m.prepared)
      missing += fmt::format("{}{}{}", missing.empty() ? "" : ", ", members.rank_of(m),
                             m.busy.empty() ? "" : fmt::format(" ({})", m.busy));
  const auto generation = members.generation().value();
  auto what = make_failure(
      failure_kind::deadline,
      fmt::format("generation {} did not form in {} ms: no answer from rank {}", generation,
                  (waits + 1) * (limits.form.count() / 1'000'000), missing));
  what.code = errc::membership;
  what.generation = generation;
  return what;
}

failure other_state(const membership& members, const member& m, const generation_base& base,
                    const std::string& digest) {
  auto what = describe(user_error(
      errc::job_failed,
      fmt::format("the state of rank {} at step {} differs from that of the other ranks: its "
                  "digest is {}, theirs is {}",
                  members.rank_of(m), base.steps(), digest, base.digest)));
  what.rank = members.rank_of(m);
  what.step = base.steps();
  what.generation = members.generation().value();
  return what;
}

std::string flush_limit(const deadlines& limits, bool aborted) {
  const auto ms = [](auto limit) { return limit.count() / 1'000'000; };
  if (aborted) return fmt::format("{} ms after the job was aborted", ms(limits.teardown));
  return fmt::format("{} ms; look at the disk, or raise time.hook_limit_seconds", ms(limits.flush));
}

failure checkpoints_late(const std::string& limit, std::int64_t committed, generation_id now) {
  auto what = make_failure(
      failure_kind::deadline,
      fmt::format("the last checkpoint is not durable: its storage operation did not end within {}",
                  limit));
  what.code = errc::checkpoint;
  what.hook = "save_checkpoint";
  what.step = committed;
  what.generation = now.value();
  return what;
}

// Abandons the ranks that have not ended. Rank 0 brings the result of an evaluation or a call:
// returns a failure if it has not.
std::optional<failure> abandon_rest(membership& members, const supervision::rules& rules,
                                    outgoing_actions& out) {
  std::optional<failure> lost;
  for (auto& m : members) {
    if (m.gone || m.abandoned) continue;
    members.mark_unresponsive(m, "teardown");
    sometimes(true, coverage_point::teardown_escalates);
    members.abandon(m);
    out.announce(lifecycle_kind::survivor, members.rank_of(m), {{"what", m.unresponsive}});
    out.abandon(m);
    if (!rules.has_result || members.rank_of(m) != 0 || m.torn_down) continue;
    lost = make_failure(failure_kind::deadline,
                        fmt::format("{}: its teardown did not end in time, and the result is lost",
                                    m.unresponsive));
    lost->rank = 0;
    lost->hook = hooks::teardown::name;
    lost->generation = members.generation().value();
  }
  return lost;
}

// Of a rank that has not answered tear_down: the answer comes after its snapshot.
bool any_arriving(const membership& members) {
  return std::ranges::any_of(members, [](const member& m) {
    return m.answered && !m.gone && !m.torn_down && !m.abandoned;
  });
}

void wait_again(membership& members, std::uint32_t& waits, std::chrono::nanoseconds limit,
                outgoing_actions& out) {
  for (auto& m : members) m.answered = false;
  ++waits;
  out.arm(limit);
}

stop_at stop_order(const membership& members, const member& m, std::int64_t step, stop_reason why) {
  stop_at order{members.fence_for(m), why, why == stop_reason::none};
  order.at.step = step_id{step};
  return order;
}

}  // namespace

supervisor_machine::supervisor_machine(job_id job, std::int32_t world, deadlines limits,
                                       supervision::rules rules)
    : limits_(limits),
      rules_(rules),
      members_(job, static_cast<std::size_t>(world)),
      placements_({rules.processes, rules.elastic.on_loss, rules.elastic.min_ranks,
                   rules.elastic.spares, limits.form, rules.fixed}),
      recovery_(rules.elastic) {
  if (world < 1) throw internal_error(fmt::format("a world of {} ranks", world));
}

std::vector<supervision::action> supervisor_machine::on(const supervision::event& what) {
  if (phase_ == phase::done) return {};
  actions out{members_, committed_.steps, deadline_};
  std::visit([&](const auto& e) { handle(e, out); }, what);
  return out.take();
}

void supervisor_machine::at(std::chrono::nanoseconds now) {
  recovery_.at(now);
  placements_.at(now);
}

// --- forming -------------------------------------------------------------------------------------

void supervisor_machine::handle(const supervision::begin& e, actions& out) {
  if (phase_ != phase::idle) return;
  if (e.incarnations.size() != members_.size())
    throw internal_error(
        fmt::format("{} incarnations for {} ranks", e.incarnations.size(), members_.size()));
  members_.begin_with(e.incarnations);
  committed_ = progress_of(e.resumed);
  current_.base.point.loop.steps = committed_.steps;
  recovery_.saved(committed_);
  out.make_room(3);
  const auto homes = placements_.begin(static_cast<std::int32_t>(members_.size()));
  for (const auto& p : placements_.all()) out.start_process(placements_, p.number);
  for (auto& m : members_) {
    m.process = homes[static_cast<std::size_t>(members_.rank_of(m))];
    out.start(m);
  }
  for (const auto spare : placements_.refill()) out.start_process(placements_, spare);
  form({}, out);
}

// Needs the members of the new generation, and its base.
void supervisor_machine::form(const std::vector<std::int32_t>& holders, actions& out) {
  phase_ = phase::forming;
  out.make_room();
  for (auto& m : members_) {
    form_generation order{members_.fence_for(m),
                          static_cast<std::int32_t>(members_.size()),
                          current_.base.point,
                          holders,
                          {}};
    out.send(m, std::move(order));
  }
  out.announce(lifecycle_kind::generation_forming, -1, recovery_.why_forming(committed_.steps));
  out.arm(limits_.form);
}

void supervisor_machine::handle(const prepared& e, actions& out) {
  auto* m = members_.sender(e.at);
  if (!m || phase_ != phase::forming) return;
  if (current_.base.held() && e.digest != current_.base.digest)
    return fail(other_state(members_, *m, current_.base, e.digest), out);
  members_.prepare(*m);
  out.announce(lifecycle_kind::rank_started, members_.rank_of(*m));
  if (members_.unprepared() == 0) activate(out);
}

void supervisor_machine::activate(actions& out) {
  phase_ = phase::active;
  out.make_room();
  commit(progress_of(current_.base.point.loop), out);
  out.announce(lifecycle_kind::generation_active, -1,
               {{"ranks", std::to_string(working_processes(members_, placements_))},
                {"shards", std::to_string(members_.size())}});
  for (auto& m : members_) {
    m.answered = false;
    activate_generation order{members_.fence_for(m)};
    out.send(m, order);
  }
  for (const auto spare : placements_.refill()) out.start_process(placements_, spare);
  ask_soon(out);
  if (stop_ != stop_reason::none || wanted() != membership_change::none) propose(out);
}

void supervisor_machine::ask_soon(actions& out) {
  current_.asked = 0;
  out.arm(limits_.close);
}

// Sends orders again to the ranks that were silent since the last time or owe an answer. Returns
// false when there are none. Ranks repeat their answers, so the order or the answer may be lost.
bool supervisor_machine::ask_again(actions& out) {
  bool any = false;
  for (auto& m : members_) {
    if (m.gone || m.finished) continue;
    const auto send = [&](supervision::order what) {
      out.send(m, std::move(what));
      any = true;
    };
    if (!std::exchange(m.answered, false)) send(activate_generation{members_.fence_for(m)});
    if (current_.proposed && !m.vote) send(propose_stop{members_.fence_for(m), stop_});
    if (current_.named) send(stop_order(members_, m, *current_.named, stop_));
  }
  return sometimes(any, coverage_point::asked_again);
}

void supervisor_machine::take_answer(member& m, actions& out) {
  m.answered = true;
  if (std::exchange(current_.asked, 0) == asks_max) out.arm(limits_.close);
}

// --- active --------------------------------------------------------------------------------------

void supervisor_machine::handle(const step_done& e, actions& out) {
  auto* m = members_.sender(e.at);
  // Steps that were done before the generation began to close still count.
  if (!m || (phase_ != phase::active && phase_ != phase::closing)) return;
  if (phase_ == phase::active) take_answer(*m, out);
  const progress now{e.at.step.value(), e.epoch, e.samples};
  if (members_.hold(*m, now, committed_.steps)) commit(members_.least_held(), out);
  change_if_held(out);
}

// Every member holds so much, or rank 0 saves it at the end of a job that fails.
void supervisor_machine::commit(const progress& now, actions& out) {
  const auto before = committed_.steps;
  always(now.steps >= before || current_.base.steps() < before, coverage_point::commit_grows);
  if (now.steps <= before) return;
  committed_ = now;
  recovery_.advanced();
  members_.recount(committed_.steps);
  out.add(supervision::commit{committed_.steps});
}

void supervisor_machine::handle(const request_stop& e, actions& out) {
  if (stop_ != stop_reason::none || e.why == stop_reason::none) return;
  stop_ = e.why;
  sometimes(phase_ < phase::active, coverage_point::stop_before_active);
  out.announce(lifecycle_kind::stop_requested, -1, {{"why", std::string{to_string(e.why)}}});
  if (phase_ == phase::active) propose(out);
}

// A stop that comes while the membership changes replaces the pause.
void supervisor_machine::propose(actions& out) {
  if (sometimes(current_.named.has_value(), coverage_point::stop_in_change)) return send_stop(out);
  if (current_.proposed) return;
  current_.proposed = true;
  out.make_room();
  for (auto& m : members_) {
    propose_stop order{members_.fence_for(m), stop_};
    out.send(m, order);
  }
  ask_soon(out);
}

void supervisor_machine::handle(const stop_vote& e, actions& out) {
  auto* m = members_.sender(e.at);
  if (!m || phase_ != phase::active || !current_.proposed || current_.named) return;
  take_answer(*m, out);
  m->vote = e.at.step.value();
  const auto voted = [](const member& each) { return each.vote.has_value(); };
  if (!std::ranges::all_of(members_, voted)) return;
  current_.named = *std::ranges::max_element(members_, {}, &member::vote)->vote;
  // Ranks that have not loaded the checkpoint yet vote for step 0.
  current_.named = std::max(*current_.named, committed_.steps);
  // No rank has passed the next step, so all pause right after it, and hold the same point.
  if (stop_ == stop_reason::none) ++*current_.named;
  const auto furthest = std::ranges::max_element(members_, {}, &member::held);
  always(*current_.named >= furthest->held.steps, coverage_point::stop_not_passed);
  send_stop(out);
}

void supervisor_machine::send_stop(actions& out) {
  out.make_room();
  if (stop_ != stop_reason::none)
    out.announce(lifecycle_kind::stop_agreed, -1, {{"steps", std::to_string(*current_.named)}});
  for (const auto& m : members_) out.send(m, stop_order(members_, m, *current_.named, stop_));
  ask_soon(out);
}

void supervisor_machine::handle(const rank_finished& e, actions& out) {
  auto* m = members_.sender(e.at);
  if (!m || phase_ != phase::active || m->finished) return;
  take_answer(*m, out);
  members_.finish(*m);
  out.announce(lifecycle_kind::rank_finished, members_.rank_of(*m),
               {{"steps", std::to_string(e.loop.steps)}});
  const bool first = members_.unfinished() + 1 == members_.size();
  if (!first && e.loop.steps != loop_.steps) {
    auto what =
        describe(internal_error(fmt::format("rank {} ended after {} steps, others after {}",
                                            members_.rank_of(*m), e.loop.steps, loop_.steps)));
    what.rank = members_.rank_of(*m);
    what.generation = generation().value();
    return fail(std::move(what), out);
  }
  if (first || members_.rank_of(*m) == 0) {
    loop_ = e.loop;
    current_.ended_by = e.why;
  }
  if (members_.unfinished() > 0) return;
  if (loop_.steps > committed_.steps) commit(progress_of(loop_), out);
  done_ = true;
  start_teardown(out);
}

// --- failure -------------------------------------------------------------------------------------

void supervisor_machine::handle(const rank_failed& e, actions& out) {
  if (!e.gone) {
    if (members_.sender(e.at)) return fail(e.local->record, out);
    const bool in_teardown = e.local->record.hook == hooks::teardown::name;
    if (in_teardown && members_.is_of_former(e.at)) report_of_moved_rank(e.local->record, out);
    return;
  }
  // A process can end before its rank has received a generation.
  auto* m = e.at.job == members_.job() ? members_.find(e.at.incarnation) : nullptr;
  if (!m) return;
  auto what = e.local->record;
  if (what.kind == failure_kind::start_failed) {
    what.what = fmt::format("rank {} could not be started: {}", members_.rank_of(*m), what.what);
    what.code = errc::membership;
    what.rank = members_.rank_of(*m);
    what.generation = generation().value();
  } else if (what.step == undefined) {
    what.step = current_.base.reached_by(*m);
  }
  placements_.lost(m->process);
  lose(*m, std::move(what), true, out);
}

void supervisor_machine::handle(const request_abort& e, actions& out) {
  if (phase_ == phase::idle || phase_ > phase::flushing_checkpointer) return;
  const bool ends = (phase_ == phase::closing && (current_.over || recovery_.must_end())) ||
                    (phase_ == phase::tearing && failures_.first());
  const bool known = recovery_.aborted();
  recovery_.abort();
  if (phase_ == phase::flushing_checkpointer) {
    // Not for each request that is repeated: that would extend the wait.
    const bool saved = std::exchange(rules_.saves, false);
    if (!known || saved) out.arm(limits_.teardown);
    return;
  }
  if (known || ends) return;
  auto what = make_failure(e.kind, e.why);
  what.generation = generation().value();
  what.step = committed_.steps;
  fail(std::move(what), out);
}

void supervisor_machine::handle(const supervision::trouble& e, actions& out) {
  auto what = e.what;
  if (!what.id) what.id = next_failure();
  const bool known = failures_.is_first(what.id) || failures_.is_late(what.id);
  if (!e.ends_job || !known) out.announce_failure(lifecycle_kind::trouble, what);
  if (!e.ends_job) return failures_.add_late(std::move(what));
  if (phase_ == phase::forming || phase_ == phase::active || phase_ == phase::closing) {
    recovery_.end_job();
    return fail(std::move(what), out);
  }
  // The ranks have ended or are ending: there is no generation to close.
  failures_.end_job(std::move(what));
}

// A job that can restart does not fail because a rank is lost when all steps are done.
bool supervisor_machine::comes_too_late(const failure& what) const {
  return over(phase_) || (rules_.elastic.enabled() && done_ && !failures_.first() &&
                          phase_ == phase::tearing && what.follows);
}

// Records a failure. A forming or active generation closes. In later phases the shutdown goes on.
void supervisor_machine::fail(failure what, actions& out) {
  const bool known = what.id && failures_.holds(what.id);
  if (sometimes(known, coverage_point::failure_said_twice)) return;
  if (!what.id) what.id = next_failure();
  out.announce_failure(lifecycle_kind::rank_failed, what);
  if (comes_too_late(what)) {
    if (current_.orderly && !over(phase_)) release_teardown(what, out);
    return failures_.add_late(std::move(what));
  }
  if (phase_ == phase::tearing && !done_ && failures_.first()) {
    // The report of the cause may arrive late, after a snapshot of the same rank.
    if (failures_.first()->follows && !what.follows && what.hook != hooks::teardown::name)
      return failures_.add(std::move(what));
    what.follows = true;  // the job had failed, so this is not the cause, whatever its step
    return failures_.add_other(std::move(what));
  }
  failures_.add(std::move(what));
  sometimes(phase_ == phase::active && current_.proposed, coverage_point::vote_then_failure);
  begin_closing(out);
  if (sometimes(phase_ == phase::tearing && current_.orderly, coverage_point::teardown_released))
    release_teardown(*failures_.first(), out);
}

// Closes the generation, or ends the job after all when a later failure says so.
void supervisor_machine::begin_closing(actions& out) {
  if (phase_ == phase::forming || phase_ == phase::active) {
    phase_ = phase::closing;
    current_.orderly = false;
    current_.over = !rules_.elastic.enabled();
    out.announce(lifecycle_kind::generation_closing);
    out.arm(failures_.first()->follows ? limits_.settle : limits_.close);
  }
  if (phase_ != phase::closing) return;
  const bool ends = current_.close_sent && !current_.over && !recovery_.may_restart(situation());
  if (sometimes(ends, coverage_point::closed_for_good)) members_.reopen();
  if (ends || (!current_.close_sent && !failures_.first()->follows)) send_close(out);
}

// --- deadlines -----------------------------------------------------------------------------------

void supervisor_machine::handle(const deadline_passed& e, actions& out) {
  if (sometimes(e.id != deadline_, coverage_point::old_deadline)) return;
  switch (phase_) {
    case phase::forming:
      if (still_forming(members_, limits_, current_.waits))
        return wait_again(members_, current_.waits, limits_.form, out);
      sometimes(true, coverage_point::forming_deadline);
      fail(not_formed(members_, limits_, current_.waits), out);
      break;
    case phase::closing:
      if (sometimes(!current_.close_sent, coverage_point::only_followers)) return send_close(out);
      if (current_.resting) return restart(out);
      if (sometimes((current_.waits + 1) * limits_.close < limits_.hook_limit &&
                        recovery_.needs_unclosed(situation(), current_.over),
                    coverage_point::hooks_awaited))
        return wait_again(members_, current_.waits, limits_.close, out);
      give_up_unclosed(out);
      break;
    case phase::tearing:
      if ((rules_.saves || !recovery_.aborted()) && any_arriving(members_) &&
          (current_.waits + 1) * limits_.teardown < limits_.hook_limit)
        return wait_again(members_, current_.waits, limits_.teardown, out);
      current_.orderly = false;
      placements_ = placements{};  // every process has its order to end, and is killed
      if (auto lost = abandon_rest(members_, rules_, out); lost && !failures_.first())
        fail(std::move(*lost), out);
      flush_if_all_gone(out);
      break;
    case phase::flushing_checkpointer:
      sometimes(true, coverage_point::flush_in_vain);
      survivors_.push_back("checkpointer: still writing");
      handle(supervision::trouble{checkpoints_late(flush_limit(limits_, recovery_.aborted()),
                                                   committed_.steps, generation()),
                                  true},
             out);
      handle(supervision::checkpointer_done{}, out);
      break;
    case phase::flushing_observers:
      survivors_.push_back("observer: still flushing");
      finish(out);
      break;
    case phase::active:
      current_.asked = ask_again(out) ? current_.asked + 1 : 0;
      if (!sometimes(current_.asked >= asks_max, coverage_point::asked_in_vain))
        out.arm(limits_.close);
      break;
    case phase::idle:
    case phase::done: break;
  }
}

}  // namespace troupe
