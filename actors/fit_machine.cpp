#include "actors/fit_machine.hpp"

#include "actors/deciders.hpp"
#include "actors/hook_sequences.hpp"
#include "messages/validation_interval.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

namespace {

// The hooks of `all` from `first` that go out together: the rest up to `last`, or with `one_hook`
// one hook, an optimizer_step with its closure.
std::vector<hook> part_of(std::vector<hook>&& all, std::size_t first, std::size_t last,
                          bool one_hook) {
  if (first == 0 && last == all.size() && !one_hook) return std::move(all);
  if (one_hook) {
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

void check_lengths(const fit_plan& plan, const optimizer_facts& optimizers,
                   const fit_intervals& lengths, const loop_state& from) {
  check_finished(plan, from);
  if (optimizers.splits_batches) refuse_accumulated_splits(plan);
  if (!plan.val_by_time && plan.check_val_every_n_epoch > 0)
    check_validation_interval(lengths.validation_interval(), lengths.train_batches());
}

}  // namespace

fit_machine::fit_machine(shared_value<fit_plan> plan) : plan_(std::move(plan)) {
  loop_.early_stopping = stop_early_states(plan_->stop_early, {});
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
    void operator()(const fit_events::set_up& e) { self.set_up(e.trained, out); }
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

void fit_machine::set_up(bool trained, actions& out) {
  joins_ = true;
  trained_ = trained;
  begin(out);
}

void fit_machine::resume(actions& out) {
  if (phase_ != phase::at_point || point_.number == 0)
    throw internal_error("fit machine: resumed, but no point was kept");
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
  loaders_.resume(loop_);
}

void fit_machine::ran(std::uint32_t handled, const hook_outcome& outcome, actions& out) {
  check(handled, outcome.verdict);
  segment_.handled += handled;
  segment_.in_flight = 0;
  learn(outcome, out);
  requests_.take(outcome);
  if (outcome.verdict == run_verdict::skip_epoch)
    enter(phase::epoch_end);
  else if (segment_.handled == segment_.length)
    leave_phase(out);
  emit(out);
}

void fit_machine::settle(std::uint32_t handled, const hook_outcome& outcome, actions& out) {
  const bool whole = outcome.verdict == run_verdict::proceed && handled == segment_.in_flight;
  const bool applied = phase_ == phase::window && (applied_ || outcome.samples > 0);
  segment_.handled += handled;
  segment_.in_flight = 0;
  if (!whole && !applied) return;
  learn(outcome, out);
  requests_.take(outcome);
  if (applied)
    span_done(out);
  else if (segment_.handled == segment_.length)
    leave_phase(out);
}

void fit_machine::vote_on_stop(actions& out) {
  if (!stop_.voted) stop_.voted = vote();
  out.emplace_back(fit_actions::vote{*stop_.voted});
}

void fit_machine::agree_on_stop(const stop_at& event, actions& out) {
  const auto step = event.at.step.value();
  const bool same = stop_.agreed && stop_.agreed->step == step;
  if (same && (event.pause || !stop_.agreed->pause)) {
    if (paused()) out.emplace_back(fit_actions::step_finished{loop_.steps});
    return;
  }
  if (event.pause && (!plan_->keeps_points || plan_->purpose != stage::train))
    throw internal_error("fit machine: a pause in a run that cannot go on from there");
  const auto passed = stop_.voted ? *stop_.voted : vote();
  if (!same && (stop_.agreed || step < passed))
    throw internal_error(fmt::format("fit machine: stop at {}, but {}", step,
                                     stop_.agreed ? fmt::format("{} was agreed", stop_.agreed->step)
                                                  : fmt::format("this rank voted {}", passed)));
  const bool held = holding();
  const bool paused_until_now = paused();
  stop_.agreed = agreed_stop{step, event.why, event.pause};
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
        fmt::format("fit machine: {} ({} of {} hooks handled)", why, handled, segment_.in_flight));
  };
  if (segment_.in_flight == 0) refuse("an answer without a run");
  if (handled > segment_.in_flight) refuse("more hooks handled than were sent");
  switch (word) {
    case run_verdict::proceed:
      if (handled != segment_.in_flight) refuse("a run ended early without a reason");
      return;
    case run_verdict::attention:
      if (splits_closure(segment(), segment_.handled + handled))
        refuse("a closure cut by attention");
      return;
    case run_verdict::skip_epoch: {
      if (phase_ != phase::window || handled == 0) refuse("skip_epoch outside of an epoch");
      const auto hooks = segment();
      if (!hooks[segment_.handled + handled - 1].is<hooks::on_train_batch_start>())
        refuse("skip_epoch from another hook than on_train_batch_start");
      return;
    }
    case run_verdict::failed:
    case run_verdict::waits: break;
  }
  refuse("a failed run is not the machine's");
}

void fit_machine::learn(const hook_outcome& outcome, actions& out) {
  loaders_.learn(outcome.loaders, phase_ == phase::prepare);
  if (outcome.optimizers) optimizers_ = *outcome.optimizers;
  if (outcome.splits > 0) segment_.splits = outcome.splits;
  const bool fit = plan_->purpose == stage::train;
  if (outcome.restored && !plan_->resume.empty() &&
      phase_ == (fit ? phase::launch : phase::prepare)) {
    loop_ = *outcome.restored;
    requests_.take(loop_, plan_->begins_again);
    if (!fit) requests_.stop = stop_reason::none;  // the fit's that wrote the checkpoint
    loop_.early_stopping = stop_early_states(plan_->stop_early, std::move(loop_.early_stopping));
    if (const auto& name = plan_->checkpoint.monitor;
        loop_.last.contains(name) && loop_.monitored.monitor != name)
      loop_.monitored = {name};  // of other weights, perhaps
    loaders_.resume(loop_);
    last_saved_ = loop_.steps;
  }
  loop_.samples += outcome.samples;
  loop_.cursor += outcome.samples;
  applied_ = plan_->keeps_points && phase_ == phase::window && (applied_ || outcome.samples > 0);
  if (outcome.logged.empty() || phase_ == phase::sanity) return;
  for (const auto& [key, number] : outcome.logged) {
    loop_.last[key] = number;
    if (phase_ == phase::validation) loop_.of_validation.insert(key);
  }
  auto where = at();
  if (phase_ == phase::window)
    ++where.step;
  else
    where.batch = phase_ == phase::validation ? batch_ : undefined;  // a step may have several
  if (phase_ == phase::close && fit) {  // on_train_end belongs to the last step
    where.epoch = loop_.epoch - (loop_.batch == 0 && loop_.epoch > 0 ? 1 : 0);
    where.step = loop_.steps;
  }
  if (const auto& name = plan_->checkpoint.monitor; outcome.logged.contains(name))
    loop_.monitored = {name, where.step, where.stage == stage::validate ? undefined : where.epoch};
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
      requests_.save = false;
      pass_point(resume_point::next::go);
      return hold_or_go();
    case phase::last_checkpoint:
      last_saved_ = last_snapshot_ = loop_.steps;
      return enter(phase::close);
    case phase::close:
      phase_ = phase::done;
      out.emplace_back(fit_actions::finished{why_, intervals().saved_loop(requests_)});
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
  segment_.length = static_cast<std::uint32_t>(hooks.size());
  // The batch is not split yet, so the segment is longer than it seems.
  const bool unsplit =
      phase_ == phase::window && optimizers_.splits_batches && segment_.splits == 0;
  const auto end = unsplit ? end_of_split(hooks) : hooks.size();
  if (segment_.handled >= end)
    throw internal_error("fit machine: tbptt_split_batch brought no splits");
  auto part = part_of(std::move(hooks), segment_.handled, end, plan_->one_hook_per_run);
  segment_.in_flight = static_cast<std::uint32_t>(part.size());
  const bool last = segment_.handled + segment_.in_flight == segment_.length;
  out.emplace_back(fit_actions::run{std::move(part), last && ends_at_point()});
}

// --- training ------------------------------------------------------------------------------------

void fit_machine::launched(actions& out) {
  if (plan_->purpose == stage::call) return end(stop_reason::none);
  if (plan_->purpose == stage::train) {
    if (!joins_ && !plan_->resume.empty() && last_saved_ == undefined)
      throw internal_error("fit machine: load_checkpoint brought no loop state");
    check_lengths(*plan_, optimizers_, intervals(), loop_);
  }
  if (joins_) {
    if (plan_->purpose == stage::train && trained_) return enter(phase::train_start);
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
  if (intervals().train_batches() == 0 || intervals().limits_reached())
    return end(stop_reason::none);
  if (last_saved_ == undefined && intervals().batches_of(stage::sanity) > 0)
    enter_evaluation(phase::sanity);
  else
    enter(phase::train_start);
}

void fit_machine::boundary() {
  if (intervals().validation_due(requests_)) return enter_evaluation(phase::validation);
  if (loop_.batch >= intervals().train_batches()) return enter(phase::epoch_end);
  if (intervals().save_due(requests_, last_saved_, false)) return enter(phase::checkpoint);
  hold_or_go();
}

void fit_machine::epoch_ended() {
  requests_.stop_early(*plan_, false, loop_);
  ++loop_.epoch;
  loop_.earlier_batches += loop_.batch;
  loop_.batch = 0;
  loop_.cursor = 0;
  loop_.validated = false;
  batch_ = 0;
  pass_point(resume_point::next::epoch_done);
  epoch_done();
}

// Refuses a monitor here, where the learner is: so a checkpoint of the failure is of one place.
void fit_machine::epoch_done() {
  if (intervals().validation_was_due()) {
    check_monitor(plan_->checkpoint, loop_.last);
    check_monitors(plan_->stop_early, loop_.last);
  }
  if (intervals().save_due(requests_, last_saved_, true)) return enter(phase::checkpoint);
  hold_or_go();
}

void fit_machine::hold_or_go() {
  if (intervals().limits_reached()) return end(stop_reason::none);
  if (requests_.stop != stop_reason::none && intervals().may_stop()) return end(requests_.stop);
  if (stop_.pauses_at(loop_.steps)) return enter(phase::at_point);
  if (stop_.ends_at(loop_.steps)) return end(stop_.agreed->why);
  enter_span();
  if (stop_.waits_at(loop_.steps)) until_ = batch_;
}

void fit_machine::enter_span() {
  enter(phase::window);
  until_ = intervals().span_end(batch_);
}

void fit_machine::span_done(actions& out) {
  batch_ = until_;
  if (batch_ == intervals().window_end()) {
    loop_.batch = batch_;
    loop_.validated = false;
    ++loop_.steps;
    out.emplace_back(fit_actions::step_finished{loop_.steps});
    pass_point(resume_point::next::boundary);
    return stop_.pauses_at(loop_.steps) ? enter(phase::at_point) : boundary();
  }
  if (intervals().validation_due_after(batch_)) return enter_evaluation(phase::validation);
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
  if (next == phase::validation) requests_.validate = false;
  next_evaluation_span();
}

void fit_machine::next_evaluation_span() {
  enter(phase_);
  const auto total = batches();
  if (phase_ == phase::evaluation) {
    if (total == 0) return end(stop_reason::none);
    const auto why = requests_.stop != stop_reason::none ? requests_.stop
                     : stop_.ends_at(evaluated_)         ? stop_.agreed->why
                                                         : stop_reason::none;
    if (why != stop_reason::none && evaluated_ == 0) return end(why);
    until_ = evaluated_;
    why_ = why;
    closing_ = why != stop_reason::none;
    if (closing_ || stop_.waits_at(evaluated_)) return;
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
  requests_.stop_early(*plan_, true, loop_);
  if (batch_ != loop_.batch) return enter_span();
  loop_.validated = true;
  pass_point(resume_point::next::boundary);
  boundary();
}

}  // namespace troupe
