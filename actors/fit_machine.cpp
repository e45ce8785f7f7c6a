#include "actors/fit_machine.hpp"

#include "actors/deciders.hpp"
#include "actors/hook_sequences.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

namespace {

// The hooks of `all` from `first` that go out together: the rest up to `last`, or in fine mode one
// hook, an optimizer_step with its closure.
std::vector<hook> part_of(std::vector<hook>&& all, std::size_t first, std::size_t last, bool fine) {
  if (first == 0 && last == all.size() && !fine) return std::move(all);
  if (fine) {
    const auto* step = all[first].get_if<hooks::optimizer_step>();
    last = first + 1 + (step ? step->closure : 0);
  }
  const auto at = [&](std::size_t i) {
    return std::make_move_iterator(all.begin() + static_cast<std::ptrdiff_t>(i));
  };
  return {at(first), at(last)};
}

// Where the answer to tbptt_split_batch is needed before the machine can go on.
std::size_t end_of_split(const std::vector<hook>& all) {
  const auto found =
      std::ranges::find_if(all, [](const hook& h) { return h.is<hooks::tbptt_split_batch>(); });
  return static_cast<std::size_t>(found - all.begin()) + 1;
}

// Whether the first `n` of `all` end inside of an optimizer_step's closure.
bool splits_closure(const std::vector<hook>& all, std::size_t n) {
  std::size_t i = 0;
  while (i < n) {
    const auto* step = all[i].get_if<hooks::optimizer_step>();
    i += 1 + (step ? step->closure : 0);
  }
  return i != n;
}

}  // namespace

fit_machine::fit_machine(shared_value<fit_plan> plan) : plan_(std::move(plan)) {
  loop_.early_stopping.resize(plan_->stop_early.size());
}

std::vector<fit_action> fit_machine::on(const fit_event& event) {
  actions out;
  on(event, out);
  return out;
}

void fit_machine::on(const fit_event& event, std::vector<fit_action>& out) {
  struct dispatcher {
    fit_machine& self;
    actions& out;

    void operator()(const fit_events::begin&) { self.begin(out); }
    void operator()(const fit_events::set_up&) { self.set_up(out); }
    void operator()(const fit_events::resume&) { self.resume(out); }
    void operator()(const fit_events::ran& e) { self.ran(e.handled, e.outcome, out); }
    void operator()(const propose_stop&) { self.vote_on_stop(out); }
    void operator()(const stop_at& e) { self.agree_on_stop(e, out); }
  };
  std::visit(dispatcher{*this, out}, event);
}

// --- events --------------------------------------------------------------------------------------

void fit_machine::begin(actions& out) {
  if (phase_ != phase::idle) throw internal_error("fit machine: begun twice");
  enter(phase::prepare);
  emit(out);
}

void fit_machine::set_up(actions& out) {
  joins_ = true;
  begin(out);
}

void fit_machine::resume(actions& out) {
  if (phase_ != phase::at_point || point_.number == 0)
    throw internal_error("fit machine: resumed without a point");
  go_on();
  emit(out);
}

// Continues from `point_`, at the place that `point_.then` names.
void fit_machine::go_on() {
  switch (point_.then) {
    case resume_point::next::start: return started();
    case resume_point::next::boundary: return boundary();
    case resume_point::next::epoch_done: return epoch_done();
    case resume_point::next::go: return hold_or_go();
  }
}

void fit_machine::adopt(const resume_point& where) {
  if (phase_ != phase::at_point || where.number == 0)
    throw internal_error("fit machine: a state without its set-up");
  wait_at(where);
  joins_ = false;
  resumed_epoch_ = loop_.epoch;
  resumed_batch_ = loop_.batch;
  resumed_cursor_ = loop_.cursor;
}

void fit_machine::ran(std::uint32_t handled, const hook_outcome& outcome, actions& out) {
  check(handled, outcome.word);
  handled_ += handled;
  in_flight_ = 0;
  learn(outcome, out);
  take_wishes(outcome);
  if (outcome.word == run_verdict::skip_epoch)
    enter(phase::epoch_end);
  else if (handled_ == length_)
    leave_phase(out);
  emit(out);
}

void fit_machine::settle(std::uint32_t handled, const hook_outcome& outcome, actions& out) {
  const bool whole = outcome.word == run_verdict::proceed && handled == in_flight_;
  const bool applied = phase_ == phase::window && (applied_ || outcome.samples > 0);
  handled_ += handled;
  in_flight_ = 0;
  if (!whole && !applied) return;
  learn(outcome, out);
  take_wishes(outcome);
  if (applied)
    span_done(out);
  else if (handled_ == length_)
    leave_phase(out);
}

// The same on all ranks.
void fit_machine::take_wishes(const hook_outcome& outcome) {
  if (outcome.stop && ending_ == stop_reason::none) ending_ = stop_reason::hook;
  save_due_ |= outcome.save_due;
  validation_due_ |= outcome.validation_due;
}

void fit_machine::vote_on_stop(actions& out) {
  if (!hold_) hold_ = vote();
  out.emplace_back(fit_actions::vote{*hold_});
}

void fit_machine::agree_on_stop(const stop_at& event, actions& out) {
  const auto step = event.at.step.value();
  const bool same = stop_ && stop_->step == step;
  if (same && (event.pause || !stop_->pause)) {
    if (paused()) out.emplace_back(fit_actions::step_finished{loop_.steps});
    return;
  }
  if (event.pause && (!plan_->keeps_points || plan_->purpose != stage::train))
    throw internal_error("fit machine: a pause in a run that cannot go on from there");
  const auto passed = hold_ ? *hold_ : vote();
  if (!same && (stop_ || step < passed))
    throw internal_error(fmt::format("fit machine: stop at {}, but {}", step,
                                     stop_ ? fmt::format("{} was agreed", stop_->step)
                                           : fmt::format("this rank voted {}", passed)));
  const bool held = holding();
  const bool paused_until_now = paused();
  stop_ = agreed_stop{step, event.why, event.pause};
  if (!held && !paused_until_now) return;
  if (paused_until_now)
    go_on();
  else if (phase_ == phase::window)
    hold_or_go();
  else
    next_evaluation_span();
  emit(out);
}

void fit_machine::check(std::uint32_t handled, run_verdict word) const {
  const auto refuse = [&](std::string_view why) {
    throw internal_error(
        fmt::format("fit machine: {} ({} of {} hooks handled)", why, handled, in_flight_));
  };
  if (in_flight_ == 0) refuse("an answer without a run");
  if (handled > in_flight_) refuse("more hooks handled than were sent");
  switch (word) {
    case run_verdict::proceed:
      if (handled != in_flight_) refuse("a run ended early without a reason");
      return;
    case run_verdict::attention:
      if (splits_closure(segment(), handled_ + handled)) refuse("a closure cut by attention");
      return;
    case run_verdict::skip_epoch: {
      if (phase_ != phase::window || handled == 0) refuse("skip_epoch outside of an epoch");
      const auto hooks = segment();
      if (!hooks[handled_ + handled - 1].is<hooks::on_train_batch_start>())
        refuse("skip_epoch from another hook than on_train_batch_start");
      return;
    }
    case run_verdict::failed:
    case run_verdict::waits: break;
  }
  refuse("a failed run is not the machine's");
}

void fit_machine::learn(const hook_outcome& outcome, actions& out) {
  for (const auto& told : outcome.loaders) {
    const auto same = std::find_if(loaders_.begin(), loaders_.end(), [&](const auto& known) {
      return known.stage == told.stage && known.dataloader == told.dataloader;
    });
    if (same != loaders_.end())
      *same = told;
    else if (phase_ == phase::prepare)
      loaders_.push_back(told);
    else
      throw internal_error("fit machine: a loader that process_dataloader 0 did not name");
  }
  if (outcome.optimizers) optimizers_ = *outcome.optimizers;
  if (outcome.splits > 0) splits_ = outcome.splits;
  const bool fit = plan_->purpose == stage::train;
  if (outcome.restored && !plan_->resume.empty() &&
      phase_ == (fit ? phase::launch : phase::prepare)) {
    loop_ = *outcome.restored;
    ending_ = static_cast<stop_reason>(std::exchange(loop_.pending_stop, std::uint8_t{0}));
    loop_.early_stopping.resize(plan_->stop_early.size());
    resumed_epoch_ = loop_.epoch;
    resumed_batch_ = loop_.batch;
    resumed_cursor_ = loop_.cursor;
    last_saved_ = loop_.steps;
  }
  loop_.samples += outcome.samples;
  loop_.cursor += outcome.samples;
  applied_ = plan_->keeps_points && phase_ == phase::window && (applied_ || outcome.samples > 0);
  if (outcome.logged.empty() || phase_ == phase::sanity) return;
  for (const auto& [key, number] : outcome.logged) loop_.last[key] = number;
  auto where = at();
  if (phase_ == phase::window) ++where.step;
  if (phase_ == phase::validation) where.batch = batch_;  // a step may have several
  if (phase_ == phase::close && fit) {                    // on_train_end belongs to the last step
    where.epoch = loop_.epoch - (loop_.batch == 0 && loop_.epoch > 0 ? 1 : 0);
    where.step = loop_.steps;
  }
  out.emplace_back(fit_actions::metrics_known{where, outcome.logged, outcome.prog_bar});
}

void fit_machine::leave_phase(actions& out) {
  switch (phase_) {
    case phase::prepare: return enter(phase::launch);
    case phase::launch: return launched(out);
    case phase::train_start:
      trained_ = true;
      if (joins_) {
        phase_ = phase::at_point;
        out.emplace_back(fit_actions::is_set_up{});
        return;
      }
      pass_point(resume_point::next::boundary);
      return boundary();
    case phase::window: return span_done(out);
    case phase::sanity:
    case phase::validation:
    case phase::evaluation: return evaluation_span_done();
    case phase::epoch_end: return epoch_ended();
    case phase::checkpoint:
      last_saved_ = last_snapshot_ = loop_.steps;
      save_due_ = false;
      pass_point(resume_point::next::go);
      return hold_or_go();
    case phase::last_checkpoint:
      last_saved_ = last_snapshot_ = loop_.steps;
      return enter(phase::close);
    case phase::close:
      phase_ = phase::done;
      out.emplace_back(fit_actions::finished{why_, saved_loop()});
      return;
    case phase::idle:
    case phase::at_point:
    case phase::done: break;
  }
  throw internal_error("fit machine: nothing to leave");
}

void fit_machine::emit(actions& out) {
  if (phase_ == phase::done || phase_ == phase::at_point || holding()) return;
  auto hooks = segment();
  length_ = static_cast<std::uint32_t>(hooks.size());
  const auto end = awaits_splits() ? end_of_split(hooks) : hooks.size();
  if (handled_ >= end) throw internal_error("fit machine: tbptt_split_batch brought no splits");
  auto part = part_of(std::move(hooks), handled_, end, plan_->one_hook_per_run);
  in_flight_ = static_cast<std::uint32_t>(part.size());
  const bool last = handled_ + in_flight_ == length_;
  out.emplace_back(fit_actions::run{std::move(part), last && ends_at_point()});
}

// --- training ------------------------------------------------------------------------------------

void fit_machine::launched(actions& out) {
  if (plan_->purpose == stage::call) return end(stop_reason::none);
  if (plan_->purpose == stage::train) check_against_facts();
  if (joins_) {
    if (plan_->purpose == stage::train) return enter(phase::train_start);
    phase_ = phase::at_point;
    out.emplace_back(fit_actions::is_set_up{});
    return;
  }
  pass_point(resume_point::next::start);
  started();
}

void fit_machine::started() {
  if (plan_->purpose != stage::train) return enter_evaluation(phase::evaluation);
  batch_ = loop_.batch;
  if (train_batches() == 0 || limits_reached()) return end(stop_reason::none);
  if (plan_->resume.empty() && batches_of(stage::sanity) > 0)
    enter_evaluation(phase::sanity);
  else
    enter(phase::train_start);
}

void fit_machine::boundary() {
  if (validation_due_now()) return enter_evaluation(phase::validation);
  if (loop_.batch >= train_batches()) return enter(phase::epoch_end);
  if (save_due_now(false)) return enter(phase::checkpoint);
  hold_or_go();
}

void fit_machine::epoch_ended() {
  if (validation_was_due()) check_monitor(plan_->checkpoint, loop_.last);
  ++loop_.epoch;
  loop_.earlier_batches += loop_.batch;
  loop_.batch = 0;
  loop_.cursor = 0;
  loop_.validated = false;
  batch_ = 0;
  pass_point(resume_point::next::epoch_done);
  epoch_done();
}

void fit_machine::epoch_done() {
  if (save_due_now(true)) return enter(phase::checkpoint);
  hold_or_go();
}

void fit_machine::hold_or_go() {
  if (limits_reached()) return end(stop_reason::none);
  if (ending_ != stop_reason::none && may_stop()) return end(ending_);
  if (pauses()) return enter(phase::at_point);
  if (stop_ && loop_.steps >= stop_->step) return end(stop_->why);
  enter_span();
  if (hold_ && !stop_ && loop_.steps >= *hold_) until_ = batch_;
}

void fit_machine::enter_span() {
  enter(phase::window);
  until_ = std::min(window_end(), batch_ + plan_->run_batches);
  if (plan_->val_by_time || !validates_in_epoch()) return;
  const auto every = validation_interval();
  until_ = std::min(until_, batch_ + every - (interval_counted() + batch_) % every);
}

void fit_machine::span_done(actions& out) {
  batch_ = until_;
  if (batch_ == window_end()) {
    loop_.batch = batch_;
    loop_.validated = false;
    ++loop_.steps;
    out.emplace_back(fit_actions::step_finished{loop_.steps});
    pass_point(resume_point::next::boundary);
    return pauses() ? enter(phase::at_point) : boundary();
  }
  if (validation_due_behind(batch_)) return enter_evaluation(phase::validation);
  enter_span();
}

// The last snapshot returns the weights. So a run that was resumed at its end takes one, although
// its checkpoint exists.
void fit_machine::end(stop_reason why) {
  why_ = why;
  const bool saves = plan_->purpose == stage::train &&
                     checkpoint_due(plan_->checkpoint, {loop_.steps, false, true}, last_snapshot_);
  enter(saves ? phase::last_checkpoint : phase::close);
}

// --- evaluation ----------------------------------------------------------------------------------

void fit_machine::enter_evaluation(phase next) {
  enter(next);
  evaluated_ = 0;
  if (next == phase::validation) validation_due_ = false;
  next_evaluation_span();
}

void fit_machine::next_evaluation_span() {
  enter(phase_);
  const auto total = batches();
  if (phase_ == phase::evaluation) {
    if (total == 0) return end(stop_reason::none);
    const auto why = ending_ != stop_reason::none         ? ending_
                     : stop_ && evaluated_ >= stop_->step ? stop_->why
                                                          : stop_reason::none;
    if (why != stop_reason::none && evaluated_ == 0) return end(why);
    until_ = evaluated_;
    why_ = why;
    closing_ = why != stop_reason::none;
    if (closing_ || (hold_ && !stop_ && evaluated_ >= *hold_)) return;
  }
  until_ = std::min(total, evaluated_ + plan_->run_batches);
  closing_ = until_ == total;
}

void fit_machine::evaluation_span_done() {
  evaluated_ = until_;
  if (!closing_) return next_evaluation_span();
  closing_ = false;
  if (phase_ == phase::evaluation) return end(why_);
  evaluated_ = 0;
  if (phase_ == phase::sanity) return enter(phase::train_start);
  for (std::size_t i = 0; i < plan_->stop_early.size(); ++i)
    if (check_early_stopping(plan_->stop_early[i], loop_.early_stopping[i], loop_.last) &&
        ending_ == stop_reason::none)
      ending_ = stop_reason::early_stopping;
  if (batch_ != loop_.batch) return enter_span();
  loop_.validated = true;
  pass_point(resume_point::next::boundary);
  boundary();
}

}  // namespace troupe
