#include "actors/rank_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using ranks::phase;

rank_machine::rank_machine(rank_plan plan) : plan_(std::move(plan)), fit_(plan_.fit) {
  mine_.job = plan_.job;
  mine_.incarnation = plan_.incarnation;
}

std::vector<ranks::action> rank_machine::on(const ranks::event& what) {
  actions out;
  if (phase_ == phase::gone) return out;
  std::visit([&](const auto& e) { handle(e, out); }, what);
  return out;
}

void rank_machine::answered(const ran& what, std::vector<ranks::action>& out) {
  if (phase_ == phase::gone) return;
  handle_answer(what.at, what.handled, what.outcome,
                what.failed_with ? &what.failed_with->record : nullptr, out);
}

bool rank_machine::current(const fence& at) const {
  const bool other = check(at, mine_) != fence_verdict::current;
  return !sometimes(other, coverage_point::rank_fence_refused);
}

// --- forming and fitting -------------------------------------------------------------------------

void rank_machine::handle(const form_generation& e, actions& out) {
  const bool mine = e.at.incarnation == mine_.incarnation;
  if (!mine || check(e.at, mine_) != fence_verdict::future_generation) return;
  if (phase_ == phase::closing && !here_.over) {
    next_.emplace(e);
    return;
  }
  if (phase_ != phase::waiting && phase_ != phase::closed) return;
  mine_.term = e.at.term;
  mine_.generation = e.at.generation;
  here_ = rank_generation::of(e);
  if (!used_) begin_anew();
  if (holds_base() || !used_) return open_communicator(out);
  phase_ = phase::reopening;
  reopening_ = true;
  out.emplace_back(ranks::close_lane{});
}

bool rank_machine::holds_base() const {
  return !torn_ && fit_.point().number == here_.base.number && here_.held_by(plan_.rank);
}

void rank_machine::open_communicator(actions& out) {
  phase_ = phase::opening;
  if (mine_.generation > generation_id{1}) out.emplace_back(ranks::attend{false});
  const bool alone = here_.has_base() && !holds_base();
  out.emplace_back(ranks::open{mine_.generation, here_.world, alone});
}

void rank_machine::handle(const ranks::opened& e, actions& out) {
  if (phase_ != phase::opening) return;
  if (e.why_not) return fail(*e.why_not, out);
  if (!here_.has_base()) return is_prepared(out);
  if (!holds_base()) {
    phase_ = phase::setting_up;
    used_ = true;
    return feed(fit_events::set_up{here_.base.trained}, out);
  }
  if (here_.held_by_all()) return is_prepared(out);
  restore(out);
}

// All ranks take part: those that hold the state send it.
void rank_machine::restore(actions& out) {
  phase_ = phase::restoring;
  const auto& loop = here_.base.loop;
  hooks::restore_state hook;
  hook.at.epoch = loop.epoch;
  hook.at.step = loop.steps;
  hook.at.batch = loop.batch;
  hook.cursor = loop.cursor;
  hook.donors = here_.holders;
  submit({hook}, true, out);
}

void rank_machine::is_prepared(actions& out) {
  phase_ = phase::prepared;
  out.emplace_back(ranks::report{
      prepared{stamped(here_.base.loop.steps), here_.has_base() ? digest_ : std::string{}}});
}

void rank_machine::handle(const activate_generation& e, actions& out) {
  if (!current(e.at)) return;
  if (sometimes(phase_ == phase::finished || phase_ == phase::failed,
                coverage_point::rank_repeats_report))
    return repeat_report(out);
  if (phase_ != phase::prepared) return;
  phase_ = phase::active;
  used_ = true;
  if (here_.has_base()) return feed(fit_events::resume{}, out);
  feed(fit_events::begin{}, out);
}

// A repeated activate_generation means that the supervisor has not received the report.
void rank_machine::repeat_report(actions& out) {
  if (phase_ == phase::failed)
    out.emplace_back(ranks::report{
        rank_failed{stamped(here_.failed_with.step), without_exception(here_.failed_with)}});
  else
    out.emplace_back(ranks::report{
        rank_finished{stamped(fit_.loop().steps), fit_.loop(), here_.ended_by, {}, {}}});
}

void rank_machine::handle(const propose_stop& e, actions& out) {
  if (!current(e.at)) return;
  if (phase_ == phase::active || phase_ == phase::finished) feed(e, out);
}

void rank_machine::handle(const stop_at& e, actions& out) {
  if (!current(e.at)) return;
  if (phase_ == phase::active || phase_ == phase::finished) feed(e, out);
}

void rank_machine::feed(const fit_event& what, actions& out) {
  feed_by([&] { fit_.on(what, todo_); }, out);
}

// An event that the fit machine refuses is a failure of this rank, like an exception of a hook.
template <class Feed>
void rank_machine::feed_by(Feed give, actions& out) {
  try {
    give();
  } catch (...) {
    todo_.clear();
    return fail(describe(std::current_exception()), out);
  }
  for (auto& a : todo_) carry_out(std::move(a), out);
  todo_.clear();
}

void rank_machine::carry_out(fit_action what, actions& out) {
  if (auto* run = std::get_if<fit_actions::run>(&what)) {
    submit(std::move(run->hooks), run->keep_point, out);
  } else if (std::holds_alternative<fit_actions::is_set_up>(what)) {
    out.emplace_back(ranks::bind{});
    restore(out);
  } else if (const auto* vote = std::get_if<fit_actions::vote>(&what)) {
    out.emplace_back(ranks::report{stop_vote{stamped(vote->step)}});
  } else if (const auto* step = std::get_if<fit_actions::step_finished>(&what)) {
    out.emplace_back(
        ranks::report{step_done{stamped(step->step), fit_.loop().epoch, fit_.loop().samples}});
  } else if (const auto* known = std::get_if<fit_actions::metrics_known>(&what)) {
    out.emplace_back(ranks::row{{known->at, known->logged, known->prog_bar}});
  } else if (const auto* ended = std::get_if<fit_actions::finished>(&what)) {
    phase_ = phase::finished;
    here_.ended_by = ended->why;
    out.emplace_back(
        ranks::report{rank_finished{stamped(ended->loop.steps), ended->loop, ended->why, {}, {}}});
  }
}

void rank_machine::submit(std::vector<hook> hooks, bool keep_point, actions& out) {
  mine_.sequence = mine_.sequence.next();
  in_flight_ = mine_.sequence;
  here_.overdue = false;
  out.emplace_back(ranks::submit{{stamped(fit_.loop().steps), std::move(hooks), keep_point}});
}

void rank_machine::handle_answer(const fence& at, std::uint32_t handled,
                                 const hook_outcome& outcome, const failure* failed, actions& out) {
  if (!current(at)) return;
  if (in_flight_ != at.sequence)
    throw internal_error("rank machine: an answer to hooks that are not in flight");
  in_flight_.reset();
  const bool threw = outcome.verdict == run_verdict::failed;
  sometimes(here_.overdue && !threw, coverage_point::rank_done_after_all);
  const auto failed_with = [failed] { return failed ? *failed : failure{}; };
  switch (phase_) {
    case phase::active:
      if (threw) settle(handled, outcome, out);
      if (threw) return fail(failed_with(), out);
      feed_by([&] { fit_.ran(handled, outcome, todo_); }, out);
      if (phase_ == phase::active && plan_.rank == 0)
        out.emplace_back(
            ranks::show{seen::progress{fit_.at(), fit_.batches(), fit_.loop().samples}});
      return;
    case phase::setting_up:
      if (threw) return fail(failed_with(), out);
      return feed_by([&] { fit_.ran(handled, outcome, todo_); }, out);
    case phase::restoring:
      if (threw) return fail(failed_with(), out);
      if (!holds_base()) fit_.adopt(here_.base);
      digest_ = outcome.state_digest;
      return is_prepared(out);
    case phase::closing:
      if (!here_.rewinding && used_ && fit_.point().number > 0) settle(handled, outcome, out);
      return answered_in_closing(outcome, failed, out);
    case phase::tearing:
      if (sometimes(threw, coverage_point::rank_fails_in_teardown)) fail(failed_with(), out);
      phase_ = phase::ending;
      out.emplace_back(ranks::close_lane{});
      return;
    case phase::failed:  // the overdue hook has ended: wait for the generation to close
      return settle(handled, outcome, out);
    default: return;
  }
}

// The last answer to a run of the fit in this generation. A step whose weights are updated counts,
// though a later hook of the run failed.
void rank_machine::settle(std::uint32_t handled, const hook_outcome& outcome, actions& out) {
  if (!plan_.fit->keeps_points || fit_.point().number == 0) return;
  try {
    fit_.settle(handled, outcome, todo_);
  } catch (...) {
    todo_.clear();  // what threw comes again when the rank goes on from the point
  }
  for (auto& a : todo_)
    if (!std::holds_alternative<fit_actions::finished>(a)) carry_out(std::move(a), out);
  todo_.clear();
}

// `rewind`, on_exception, or the run that was in flight when the generation closed. A failure of
// on_exception follows from the first cause. A failure of the run in flight may have its own cause.
void rank_machine::answered_in_closing(const hook_outcome& outcome, const failure* failed,
                                       actions& out) {
  const bool threw = outcome.verdict == run_verdict::failed;
  if (std::exchange(here_.rewinding, false)) {
    torn_ = threw;
    digest_ = outcome.state_digest;
    if (!threw) fit_.rewind();
    return here_.over ? go_on_closing(out) : is_closed(out);  // a later order said so
  }
  if (sometimes(threw && !(failed && failed->follows), coverage_point::rank_fails_in_closing)) {
    auto what = failed ? *failed : failure{};
    what.follows = here_.over && here_.first.type.empty();
    fail(std::move(what), out);
  }
  go_on_closing(out);
}

// --- failure -------------------------------------------------------------------------------------

// Records the failure with this rank's position in the run, and reports it. Aborting the
// communicator releases the peers that wait for this rank.
void rank_machine::fail(failure what, actions& out) {
  number(what);
  what.rank = plan_.rank;
  what.generation = mine_.generation.value();
  what.sequence = mine_.sequence.value();
  if (what.step == undefined) what.step = fit_.loop().steps;
  out.emplace_back(ranks::abort_communicator{render(what)});
  out.emplace_back(ranks::report{rank_failed{stamped(what.step), without_exception(what)}});
  if (phase_ >= phase::opening && phase_ <= phase::finished) {
    phase_ = phase::failed;
    here_.failed_with = std::move(what);
  }
}

void rank_machine::number(failure& what) {
  if (!what.id) what.id = next_failure();
  failures_ = what.id.sequence;
}

void rank_machine::handle(const close_generation& e, actions& out) {
  if (next_ && next_->take(e)) return;
  if (!current(e.at)) return;
  switch (phase_) {
    case phase::waiting:
    case phase::ending:
    case phase::gone: return;
    case phase::tearing: out.emplace_back(ranks::abort_communicator{render(e.first)}); return;
    case phase::closing:
    case phase::closed:
      if (here_.over || !e.last) return;
      break;
    case phase::reopening:
    case phase::opening:
    case phase::setting_up:
    case phase::restoring:
    case phase::prepared:
    case phase::active:
    case phase::finished:
    case phase::failed: break;
  }
  sometimes(phase_ == phase::finished, coverage_point::rank_closed_when_finished);
  phase_ = phase::closing;
  here_.orderly = false;
  here_.over = e.last;
  here_.first = e.first;
  out.emplace_back(ranks::abort_communicator{render(e.first)});
  out.emplace_back(ranks::attend{true});
  if (sometimes(!lane_free(), coverage_point::rank_closed_in_hook)) return;
  go_on_closing(out);
}

// The lane is free: return to the last point, or run on_exception once if the job is over. Then
// report that the generation is closed.
void rank_machine::go_on_closing(actions& out) {
  if (reopening_) return;  // until there is a lane
  if (!here_.over) {
    if (fit_.point().number == 0 || torn_) return is_closed(out);
    here_.rewinding = true;
    out.emplace_back(ranks::attend{false});
    hooks::rewind hook;
    hook.at.step = fit_.point().loop.steps;
    return submit({hook}, false, out);
  }
  if (here_.orderly || here_.first.type.empty()) return is_closed(out);
  hooks::on_exception hook;
  hook.at = fit_.at();
  hook.type = here_.first.type;
  hook.what = here_.first.what;
  if (plan_.rank == 0) hook.save = fit_.unsaved();
  here_.first.type.clear();
  out.emplace_back(ranks::attend{false});
  submit({hook}, false, out);
}

void rank_machine::is_closed(actions& out) {
  phase_ = phase::closed;
  closed_generation answer{stamped(fit_.loop().steps)};
  answer.last = here_.over;
  answer.saves = here_.over && !torn_ && plan_.rank == 0 && fit_.saves_on_exception();
  if (answer.saves || (!here_.over && !torn_)) answer.held = fit_.point();
  if (!here_.over && answer.held.number > 0) answer.digest = digest_;
  out.emplace_back(ranks::report{std::move(answer)});
  auto next = std::exchange(next_, std::nullopt);
  if (here_.tear_down_asked) return handle(tear_down{mine_, false}, out);
  if (!next) return;
  // While a process starts, its proxy answers close_generation for the rank, so the supervisor may
  // be ahead of it.
  handle(next->formed(), out);
  if (const auto order = next->closed()) handle(*order, out);
}

// --- taking down ---------------------------------------------------------------------------------

void rank_machine::handle(const tear_down& e, actions& out) {
  const bool other = e.at.job != mine_.job || e.at.incarnation != mine_.incarnation;
  if (sometimes(other, coverage_point::rank_fence_refused)) return;
  if (phase_ == phase::tearing || phase_ == phase::ending) return;
  here_.orderly = here_.orderly && e.orderly;
  if (sometimes(!lane_free(), coverage_point::rank_torn_in_hook) || reopening_) {
    here_.tear_down_asked = true;
    return;
  }
  if (phase_ == phase::waiting) {  // no communicator was opened: there is none to close
    phase_ = phase::ending;
    out.emplace_back(ranks::close_lane{});
    return;
  }
  phase_ = phase::tearing;
  hooks::teardown hook;
  hook.at.step = fit_.loop().steps;
  hook.orderly = here_.orderly;
  out.emplace_back(ranks::attend{false});
  submit({hook}, false, out);
}

// Begins the fit again, because the new learner has not handled a hook yet.
void rank_machine::begin_anew() {
  digest_.clear();
  if (mine_.generation <= generation_id{1}) return;
  auto plan = *plan_.fit;
  if (!here_.resume.empty() && here_.resume != plan.resume) {
    plan.resume = here_.resume;
    plan.begins_again = true;
  }
  fit_ = fit_machine(shared_value<fit_plan>(std::move(plan)));
}

// A failure of the old learner's destruction is reported with the rank's own end.
void rank_machine::reopen_lane(actions& out) {
  reopening_ = used_ = torn_ = false;
  begin_anew();
  out.emplace_back(ranks::open_lane{});
  if (phase_ == phase::reopening) return open_communicator(out);
  if (phase_ == phase::closing) return go_on_closing(out);
}

void rank_machine::handle(const ranks::lane_ended& e, actions& out) {
  if (reopening_) {
    if (e.last) number(late_.emplace_back(*e.last));
    return reopen_lane(out);
  }
  if (phase_ != phase::ending) return;
  if (e.last) number(late_.emplace_back(*e.last));
  phase_ = phase::gone;
  out.emplace_back(ranks::report{torn_down{stamped(fit_.loop().steps), {}, late_, {}}});
  out.emplace_back(ranks::end{});
}

// --- looking at the lane -------------------------------------------------------------------------

void rank_machine::handle(const ranks::looked& e, actions& out) {
  if (phase_ == phase::reopening) {  // the old learner is being destroyed
    out.emplace_back(ranks::report{rank_busy{stamped(fit_.loop().steps), "its learner ends"}});
    return;
  }
  if (!e.busy || lane_free()) return;
  if (phase_ == phase::active) {
    if (e.waits || here_.overdue || e.since < plan_.limits.hook_limit) return;
    here_.overdue = sometimes(true, coverage_point::rank_overdue);
    auto what = make_failure(
        failure_kind::deadline,
        fmt::format("{} has been running for {:.1f} s, longer than the limit of {:.1f} s", e.hook,
                    std::chrono::duration<double>(e.since).count(),
                    std::chrono::duration<double>(plan_.limits.hook_limit).count()));
    what.hook = e.hook;
    what.step = e.step;
    return fail(std::move(what), out);
  }
  constexpr std::array reported{phase::setting_up, phase::restoring, phase::closing, phase::tearing,
                                phase::failed};
  if (std::ranges::find(reported, phase_) == reported.end()) return;
  std::string what{e.hook};
  if (e.since.count() > 0)
    what.append(" for ").append(
        fmt::format("{:.1f} s", std::chrono::duration<double>(e.since).count()));
  // In `restore_state` it may wait for the hooks of a new rank.
  const bool overdue = phase_ != phase::restoring && e.since >= plan_.limits.hook_limit;
  out.emplace_back(ranks::report{rank_busy{stamped(fit_.loop().steps), std::move(what), overdue}});
}

fence rank_machine::stamped(std::int64_t step) const {
  auto at = mine_;
  at.step = step_id{step};
  return at;
}

}  // namespace troupe
