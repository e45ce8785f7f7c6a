#include "actors/rank_machine.hpp"

#include <fmt/format.h>

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
  if (check(e.at, mine_) != fence_verdict::future_generation || phase_ != phase::waiting) return;
  mine_.term = e.at.term;
  mine_.generation = e.at.generation;
  world_ = e.world;
  phase_ = phase::opening;
  out.emplace_back(ranks::open{mine_.generation, world_});
}

void rank_machine::handle(const ranks::opened& e, actions& out) {
  if (phase_ != phase::opening) return;
  if (e.why_not) return fail(*e.why_not, out);
  phase_ = phase::prepared;
  out.emplace_back(ranks::report{prepared{stamped(0)}});
}

void rank_machine::handle(const activate_generation& e, actions& out) {
  if (!current(e.at)) return;
  if (sometimes(phase_ == phase::finished || phase_ == phase::failed,
                coverage_point::rank_repeats_report))
    return repeat_report(out);
  if (phase_ != phase::prepared) return;
  phase_ = phase::active;
  feed(fit_events::begin{}, out);
}

// A repeated activate_generation means that the supervisor has not received the report.
void rank_machine::repeat_report(actions& out) {
  if (phase_ == phase::failed)
    out.emplace_back(
        ranks::report{rank_failed{stamped(failed_with_.step), without_exception(failed_with_)}});
  else
    out.emplace_back(
        ranks::report{rank_finished{stamped(fit_.loop().steps), fit_.loop(), ended_by_, {}, {}}});
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
template <class Tell>
void rank_machine::feed_by(Tell tell, actions& out) {
  try {
    tell();
  } catch (...) {
    todo_.clear();
    return fail(describe(std::current_exception()), out);
  }
  for (auto& a : todo_) carry_out(std::move(a), out);
  todo_.clear();
}

void rank_machine::carry_out(fit_action what, actions& out) {
  if (auto* run = std::get_if<fit_actions::run>(&what)) {
    submit(std::move(run->hooks), out);
  } else if (const auto* vote = std::get_if<fit_actions::vote>(&what)) {
    out.emplace_back(ranks::report{stop_vote{stamped(vote->step)}});
  } else if (const auto* step = std::get_if<fit_actions::step_finished>(&what)) {
    out.emplace_back(ranks::report{step_done{stamped(step->step)}});
  } else if (const auto* known = std::get_if<fit_actions::metrics_known>(&what)) {
    if (plan_.rank == 0) out.emplace_back(ranks::show{seen::metrics{known->at, known->logged}});
  } else if (const auto* ended = std::get_if<fit_actions::finished>(&what)) {
    phase_ = phase::finished;
    ended_by_ = ended->why;
    out.emplace_back(
        ranks::report{rank_finished{stamped(ended->loop.steps), ended->loop, ended->why, {}, {}}});
  }
}

void rank_machine::submit(std::vector<hook> hooks, actions& out) {
  mine_.sequence = mine_.sequence.next();
  in_flight_ = mine_.sequence;
  overdue_ = false;
  out.emplace_back(ranks::submit{{stamped(fit_.loop().steps), std::move(hooks)}});
}

void rank_machine::handle_answer(const fence& at, std::uint32_t handled,
                                 const hook_outcome& outcome, const failure* failed, actions& out) {
  if (!current(at)) return;
  if (sometimes(in_flight_ != at.sequence, coverage_point::rank_old_answer)) return;
  in_flight_.reset();
  const bool threw = outcome.word == run_verdict::failed;
  const auto failed_with = [failed] { return failed ? *failed : failure{}; };
  switch (phase_) {
    case phase::active:
      if (threw) return fail(failed_with(), out);
      feed_by([&] { fit_.ran(handled, outcome, todo_); }, out);
      if (phase_ == phase::active && plan_.rank == 0)
        out.emplace_back(
            ranks::show{seen::progress{fit_.at(), fit_.batches(), fit_.loop().samples}});
      return;
    case phase::closing:
      // The run that was in flight when the generation closed, or on_exception itself.
      // A failure of on_exception follows from the first cause. A failure of the run in flight may
      // have its own cause.
      if (sometimes(threw && !(failed && failed->follows), coverage_point::rank_fails_in_closing)) {
        auto what = failed_with();
        what.follows = first_.type.empty();
        fail(std::move(what), out);
      }
      return go_on_closing(out);
    case phase::tearing:
      if (sometimes(threw, coverage_point::rank_fails_in_teardown)) fail(failed_with(), out);
      phase_ = phase::ending;
      out.emplace_back(ranks::close_lane{});
      return;
    case phase::failed:  // the overdue hook has ended: wait for the generation to close
      sometimes(!threw, coverage_point::rank_done_after_all);
      return;
    default: return;
  }
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
  if (phase_ == phase::opening || phase_ == phase::prepared || phase_ == phase::active ||
      phase_ == phase::finished) {
    phase_ = phase::failed;
    failed_with_ = std::move(what);
  }
}

void rank_machine::number(failure& what) {
  if (!what.id) what.id = next_failure();
  failures_ = what.id.sequence;
}

void rank_machine::handle(const close_generation& e, actions& out) {
  if (!current(e.at)) return;
  switch (phase_) {
    case phase::waiting:
    case phase::closing:
    case phase::closed:
    case phase::ending:
    case phase::gone: return;
    case phase::tearing: out.emplace_back(ranks::abort_communicator{render(e.first)}); return;
    case phase::opening:
    case phase::prepared:
    case phase::active:
    case phase::finished:
    case phase::failed: break;
  }
  sometimes(phase_ == phase::finished, coverage_point::rank_closed_when_finished);
  phase_ = phase::closing;
  orderly_ = false;
  first_ = e.first;
  out.emplace_back(ranks::abort_communicator{render(e.first)});
  out.emplace_back(ranks::attend{true});
  if (sometimes(!lane_free(), coverage_point::rank_closed_in_hook)) return;
  go_on_closing(out);
}

// The lane is free: run on_exception once, then report that the generation is closed.
void rank_machine::go_on_closing(actions& out) {
  if (orderly_ || first_.type.empty()) {
    phase_ = phase::closed;
    out.emplace_back(ranks::report{closed_generation{stamped(fit_.loop().steps)}});
    if (tear_down_asked_) {
      tear_down order{mine_, false};
      handle(order, out);
    }
    return;
  }
  hooks::on_exception hook;
  hook.at = fit_.at();
  hook.type = first_.type;
  hook.what = first_.what;
  first_.type.clear();
  out.emplace_back(ranks::attend{false});
  submit({hook}, out);
}

// --- taking down ---------------------------------------------------------------------------------

void rank_machine::handle(const tear_down& e, actions& out) {
  const bool other = e.at.job != mine_.job || e.at.incarnation != mine_.incarnation;
  if (sometimes(other, coverage_point::rank_fence_refused)) return;
  if (phase_ == phase::tearing || phase_ == phase::ending) return;
  orderly_ = orderly_ && e.orderly;
  if (sometimes(!lane_free(), coverage_point::rank_torn_in_hook)) {
    tear_down_asked_ = true;
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
  hook.orderly = orderly_;
  out.emplace_back(ranks::attend{false});
  submit({hook}, out);
}

void rank_machine::handle(const ranks::lane_ended& e, actions& out) {
  if (phase_ != phase::ending) return;
  if (e.last) number(late_.emplace_back(*e.last));
  phase_ = phase::gone;
  out.emplace_back(ranks::report{torn_down{stamped(fit_.loop().steps), {}, late_, {}}});
  out.emplace_back(ranks::end{});
}

// --- looking at the lane -------------------------------------------------------------------------

void rank_machine::handle(const ranks::looked& e, actions& out) {
  if (!e.busy || lane_free()) return;
  if (phase_ == phase::active) {
    if (e.waits || overdue_ || e.since < plan_.limits.hook_limit) return;
    overdue_ = sometimes(true, coverage_point::rank_overdue);
    auto what = make_failure(
        failure_kind::deadline,
        fmt::format("{} has been running for {:.1f} s, longer than the limit of {:.1f} s", e.hook,
                    std::chrono::duration<double>(e.since).count(),
                    std::chrono::duration<double>(plan_.limits.hook_limit).count()));
    what.hook = e.hook;
    what.step = e.step;
    return fail(std::move(what), out);
  }
  if (phase_ != phase::closing && phase_ != phase::tearing && phase_ != phase::failed) return;
  std::string what{e.hook};
  what.append(" for ").append(
      fmt::format("{:.1f} s", std::chrono::duration<double>(e.since).count()));
  out.emplace_back(ranks::report{rank_busy{stamped(fit_.loop().steps), std::move(what)}});
}

fence rank_machine::stamped(std::int64_t step) const {
  auto at = mine_;
  at.step = step_id{step};
  return at;
}

}  // namespace troupe
