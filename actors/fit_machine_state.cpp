// The rest of the fit machine: values derived from its state, and the machine as a value.
#include "actors/fit_machine.hpp"
#include "actors/hook_sequences.hpp"

#include "troupe/detail/stable_hash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <tuple>

namespace troupe {

namespace {

const batch_limit& limit_of(const fit_plan& plan, stage s) {
  switch (s) {
    case stage::train: return plan.train_batches;
    case stage::test: return plan.test_batches;
    case stage::predict: return plan.predict_batches;
    default: return plan.val_batches;
  }
}

}  // namespace

// --- what follows from the state -----------------------------------------------------------------

void fit_machine::enter(phase next) {
  phase_ = next;
  applied_ = false;
  handled_ = 0;
  length_ = 0;
  splits_ = 0;
}

// The batch in progress is not split yet, so the segment is longer than it seems.
bool fit_machine::awaits_splits() const {
  return phase_ == phase::window && optimizers_.splits_batches && splits_ == 0;
}

void fit_machine::pass_point(resume_point::next then) {
  if (!plan_->keeps_points) return;
  auto& p = point_;
  ++p.number;
  p.then = then;
  p.trained = trained_;
  p.loop = loop_;
  p.last_saved = last_saved_;
  p.ending = static_cast<std::uint8_t>(ending_);
  p.save_due = save_due_;
  p.validation_due = validation_due_;
}

// Whether the segment in progress ends where pass_point is called.
bool fit_machine::ends_at_point() const {
  if (!plan_->keeps_points) return false;
  switch (phase_) {
    case phase::launch: return plan_->purpose != stage::call;
    case phase::window: return until_ == window_end();
    case phase::validation: return closing_ && batch_ == loop_.batch;
    case phase::train_start:
    case phase::epoch_end:
    case phase::checkpoint: return true;
    default: return false;
  }
}

// What a later part of the run has changed since the point begins anew. The last snapshot does not
// count, because the rank that took it may be gone.
void fit_machine::wait_at(const resume_point& where) {
  if (where.number == 0) throw internal_error("fit machine: no point to return to");
  enter(phase::at_point);
  in_flight_ = 0;
  loop_ = where.loop;
  loop_.early_stopping.resize(plan_->stop_early.size());
  batch_ = loop_.batch;
  evaluated_ = until_ = 0;
  closing_ = false;
  trained_ = where.trained;
  last_saved_ = where.last_saved;
  last_snapshot_ = undefined;
  save_due_ = where.save_due;
  validation_due_ = where.validation_due;
  ending_ = static_cast<stop_reason>(where.ending);
  why_ = stop_reason::none;
  hold_.reset();
  stop_.reset();
  point_ = where;
}

bool fit_machine::holding() const {
  const bool may = phase_ == phase::window || phase_ == phase::evaluation;
  const auto from = phase_ == phase::window ? batch_ : evaluated_;
  return may && in_flight_ == 0 && until_ == from && !closing_;
}

std::int64_t fit_machine::vote() const {
  if (plan_->purpose != stage::train)
    return phase_ == phase::evaluation && in_flight_ > 0 ? until_ : evaluated_;
  const bool inside = batch_ != loop_.batch || (phase_ == phase::window && in_flight_ > 0);
  return loop_.steps + (inside ? 1 : 0);
}

stage fit_machine::stage_now() const {
  switch (phase_) {
    case phase::sanity: return stage::sanity;
    case phase::validation: return stage::validate;
    case phase::evaluation: return plan_->purpose;
    case phase::train_start:
    case phase::window:
    case phase::epoch_end:
    case phase::checkpoint:
    case phase::last_checkpoint: return stage::train;
    case phase::idle:
    case phase::prepare:
    case phase::launch:
    case phase::close:
    case phase::at_point:
    case phase::done: break;
  }
  return stage::start;
}

position fit_machine::at() const {
  position where;
  where.stage = stage_now();
  if (where.stage == stage::start) return where;
  where.epoch = loop_.epoch;
  where.step = loop_.steps;
  if (phase_ == phase::window && until_ > batch_) where.batch = until_ - 1;
  return where;
}

// The number of batches of the epoch in progress, those before a resume included.
std::int64_t fit_machine::epoch_batches(const loader_length& loader) const {
  if (loop_.epoch != resumed_epoch_ || loader.each < 1 || resumed_cursor_ < 0)
    return loader.batches;
  const auto left = std::max<std::int64_t>(0, loader.samples - resumed_cursor_);
  return resumed_batch_ + left / loader.each + (left % loader.each != 0 ? 1 : 0);
}

std::int64_t fit_machine::batches_of(const loader_length& loader, stage s) const {
  const auto there = s == stage::train ? epoch_batches(loader) : loader.batches;
  const auto limited = apply_limit(limit_of(*plan_, s), there);
  const bool all = s != stage::sanity || plan_->sanity_batches < 0;
  return all ? limited : std::min(limited, plan_->sanity_batches);
}

std::int64_t fit_machine::batches_of(stage s) const {
  std::int64_t sum = 0;
  for (const auto& loader : loaders_)
    if (loader.stage == (s == stage::sanity ? stage::validate : s)) sum += batches_of(loader, s);
  return sum;
}

std::int64_t fit_machine::batches() const {
  const auto s = stage_now();
  return batches_of(s == stage::start ? plan_->purpose : s);
}

std::int64_t fit_machine::train_batches() const { return batches_of(stage::train); }

std::int64_t fit_machine::window_end() const {
  const auto each = plan_->accumulate_in(loop_.epoch);
  return std::min((loop_.batch / each + 1) * each, train_batches());
}

std::int64_t fit_machine::validation_interval() const {
  if (batches_of(stage::validate) == 0) return 0;
  if (const auto* count = std::get_if<std::int64_t>(&plan_->val_check_interval)) return *count;
  return std::max<std::int64_t>(1, apply_limit(plan_->val_check_interval, train_batches()));
}

// What the interval has counted before the epoch in progress.
std::int64_t fit_machine::interval_counted() const {
  return plan_->check_val_every_n_epoch == 0 ? loop_.earlier_batches : 0;
}

bool fit_machine::validates_in_epoch() const {
  const auto n = plan_->check_val_every_n_epoch;
  return validation_interval() > 0 && (n == 0 || (loop_.epoch + 1) % n == 0);
}

bool fit_machine::validation_due_behind(std::int64_t batches) const {
  return batches > 0 && !plan_->val_by_time && validates_in_epoch() &&
         (interval_counted() + batches) % validation_interval() == 0;
}

// At the boundary of a step. As in Lightning, a run that a hook ends validates first.
bool fit_machine::validation_due_now() const {
  if (loop_.validated) return false;
  if (validation_due_behind(loop_.batch)) return true;
  if (validation_due_ && validates_in_epoch()) return true;
  return ending_ == stop_reason::hook && may_stop() && loop_.batch > 0 && validates_in_epoch();
}

bool fit_machine::save_due_now(bool epoch_ended) const {
  const auto& policy = plan_->checkpoint;
  return checkpoint_due(policy, {loop_.steps, epoch_ended, false}, last_saved_) ||
         (save_due_ && policy.enabled && last_saved_ != loop_.steps);
}

// At the end of an epoch: everything that the run logs was logged once.
bool fit_machine::validation_was_due() const {
  if (plan_->val_by_time) return false;
  const auto every = validation_interval();
  const auto n = plan_->check_val_every_n_epoch;
  return every == 0 ||
         (n > 0 ? loop_.epoch + 1 >= n : loop_.earlier_batches + loop_.batch >= every);
}

// A hook or early stopping may end the run.
bool fit_machine::may_stop() const {
  return loop_.epoch >= plan_->min_epochs && loop_.steps >= plan_->min_steps;
}

// A stop that waits is saved, so that a resumed run ends where this one would.
loop_state fit_machine::saved_loop() const {
  auto loop = loop_;
  if (!may_stop()) loop.pending_stop = static_cast<std::uint8_t>(ending_);
  return loop;
}

std::optional<loop_state> fit_machine::unsaved() const {
  const auto& policy = plan_->checkpoint;
  const auto& p = point_;
  if (!policy.enabled || !policy.on_exception || plan_->purpose != stage::train ||
      p.loop.steps == 0 || p.loop.steps == last_saved_)
    return std::nullopt;
  auto loop = p.loop;
  loop.pending_stop = p.ending;
  return loop;
}

bool fit_machine::limits_reached() const {
  return (plan_->max_epochs >= 0 && loop_.epoch >= plan_->max_epochs) ||
         (plan_->max_steps && loop_.steps >= *plan_->max_steps);
}

void fit_machine::check_against_facts() const {
  if (!joins_ && !plan_->resume.empty() && last_saved_ == undefined)
    throw internal_error("fit machine: load_checkpoint brought no loop state");
  if (plan_->max_epochs >= 0 && loop_.epoch > plan_->max_epochs)
    throw user_error(errc::bad_configuration,
                     fmt::format("{} has finished {} epochs, but max_epochs is {}: raise "
                                 "max_epochs to train on",
                                 plan_->resume, loop_.epoch, plan_->max_epochs));
  if (optimizers_.splits_batches) refuse_accumulated_splits(*plan_);
  const auto every = validation_interval();
  if (!plan_->val_by_time && plan_->check_val_every_n_epoch > 0 && train_batches() > 0 &&
      every > train_batches())
    throw user_error(errc::bad_configuration,
                     fmt::format("val_check_interval is {} batches, but an epoch has {}: lower it, "
                                 "give a share such as 1.0, or set check_val_every_n_epoch to 0, "
                                 "so that it counts across epochs",
                                 every, train_batches()));
}

// --- the hooks of the segment in progress --------------------------------------------------------

// A pure function of what does not change while the segment is handled: in fine mode, or when the
// lane came back early, the rest is cut from it again.
std::vector<hook> fit_machine::segment() const {
  std::vector<hook> out;
  auto where = at();
  where.batch = undefined;
  if (phase_ == phase::prepare || phase_ == phase::launch) out.reserve(16);
  if (phase_ == phase::checkpoint || phase_ == phase::last_checkpoint) out.reserve(4);
  switch (phase_) {
    case phase::prepare: hook_sequences::prepare(*plan_, out); break;
    case phase::launch: hook_sequences::launch(*plan_, loaders_, out); break;
    case phase::train_start: out.emplace_back(hooks::on_train_start{{where}}); break;
    case phase::window: train_segment(where, out); break;
    case phase::sanity:
    case phase::validation:
    case phase::evaluation: evaluation_segment(where, out); break;
    case phase::epoch_end: hook_sequences::epoch_end(optimizers_, where, out); break;
    case phase::checkpoint:
    case phase::last_checkpoint:
      hook_sequences::checkpoint(optimizers_, where, saved_loop(), out);
      break;
    case phase::close:
      where.stage = stage::train;
      where.epoch = loop_.epoch;
      where.step = loop_.steps;
      hook_sequences::close(*plan_, trained_, {where, why_}, out);
      break;
    case phase::idle:
    case phase::at_point:
    case phase::done: break;
  }
  // A rank that joins receives its state from the others; the checkpoint may be gone.
  if (joins_) std::erase_if(out, [](const hook& h) { return h.is<hooks::load_checkpoint>(); });
  return out;
}

void fit_machine::train_segment(position where, std::vector<hook>& out) const {
  // As many as there usually are: with one batch, what an allocator has at hand (1 KiB).
  constexpr std::size_t hooks_of_a_batch = 14;
  constexpr std::size_t around = 2;
  out.reserve(static_cast<std::size_t>(until_ - batch_) * hooks_of_a_batch + around);
  if (batch_ == 0) out.emplace_back(hooks::on_train_epoch_start{{where}});
  const auto last = window_end() - 1;
  for (where.batch = batch_; where.batch < until_; ++where.batch)
    hook_sequences::train_batch(*plan_, optimizers_, {where, loop_.batch, last, splits_}, out);
}

void fit_machine::evaluation_segment(position where, std::vector<hook>& out) const {
  const bool in_fit = phase_ == phase::validation;
  if (evaluated_ == 0) hook_sequences::open_evaluation(where, in_fit && batch_ == loop_.batch, out);
  const auto source = phase_ == phase::sanity ? stage::validate : where.stage;
  std::int64_t passed = 0;  // batches of the loaders before this one
  for (const auto& loader : loaders_) {
    if (loader.stage != source) continue;
    const auto here = batches_of(loader, where.stage);
    auto one = where;
    one.dataloader = loader.dataloader;
    one.batch = std::max<std::int64_t>(0, evaluated_ - passed);
    for (; one.batch < std::min(here, until_ - passed); ++one.batch)
      hook_sequences::evaluation_batch(one, out);
    passed += here;
  }
  if (!closing_) return;
  hook_sequences::close_evaluation(where, out);
  if (in_fit && optimizers_.plateau_schedulers) {
    where.stage = stage::train;
    out.emplace_back(hooks::lr_scheduler_step{where, hooks::lr_scheduler_step::interval::plateau});
  }
}

// --- the state as a value ------------------------------------------------------------------------

bool operator==(const fit_machine& a, const fit_machine& b) {
  const auto state = [](const fit_machine& m) {
    return std::tie(m.phase_, m.loop_, m.loaders_, m.optimizers_, m.batch_, m.evaluated_, m.until_,
                    m.closing_, m.handled_, m.length_, m.in_flight_, m.splits_, m.trained_,
                    m.resumed_epoch_, m.resumed_batch_, m.resumed_cursor_, m.last_saved_,
                    m.last_snapshot_, m.ending_, m.why_, m.hold_, m.stop_, m.point_, m.applied_,
                    m.joins_, m.save_due_, m.validation_due_);
  };
  return a.plan_ == b.plan_ && state(a) == state(b);
}

std::uint64_t fit_machine::digest() const {
  stable_hasher h;
  h.add(plan_->digest()).add(phase_).add(loop_.epoch).add(loop_.batch).add(loop_.steps);
  h.add(loop_.samples).add(loop_.cursor).add(loop_.validated).add(loop_.last.size());
  for (const auto& [key, number] : loop_.last) h.add(key).add(number);
  for (const auto& one : loop_.early_stopping) h.add(one.best).add(one.has_best).add(one.waited);
  h.add(loaders_.size());
  for (const auto& one : loaders_)
    h.add(one.stage).add(one.dataloader).add(one.batches).add(one.samples).add(one.each);
  h.add(optimizers_.optimizers).add(optimizers_.step_schedulers);
  h.add(optimizers_.epoch_schedulers).add(optimizers_.plateau_schedulers);
  h.add(optimizers_.accumulates_itself);
  h.add(batch_).add(evaluated_).add(until_).add(closing_);
  h.add(handled_).add(length_).add(in_flight_).add(trained_).add(last_saved_).add(last_snapshot_);
  h.add(resumed_epoch_).add(resumed_batch_).add(resumed_cursor_);
  h.add(ending_).add(why_).add(hold_).add(stop_.has_value());
  if (stop_) h.add(stop_->step).add(stop_->why);
  if (stop_ && stop_->pause) h.add(stop_->pause);
  if (point_.number > 0) {
    h.add(point_.number).add(point_.then).add(point_.trained).add(point_.loop.steps);
    h.add(point_.loop.epoch).add(point_.loop.batch).add(point_.last_saved).add(point_.ending);
    if (point_.save_due || point_.validation_due) h.add(point_.save_due).add(point_.validation_due);
  }
  if (joins_ || applied_) h.add(joins_).add(applied_);
  if (plan_->check_val_every_n_epoch == 0) h.add(loop_.earlier_batches);
  if (save_due_ || validation_due_) h.add(save_due_).add(validation_due_);
  if (optimizers_.manual) h.add(optimizers_.manual);
  if (optimizers_.splits_batches) h.add(optimizers_.splits_batches).add(splits_);
  return h.digest();
}

std::string_view fit_machine::name_of(phase p) {
  switch (p) {
    case phase::idle: return "idle";
    case phase::prepare: return "prepare";
    case phase::launch: return "launch";
    case phase::sanity: return "sanity";
    case phase::train_start: return "train_start";
    case phase::window: return "window";
    case phase::validation: return "validation";
    case phase::epoch_end: return "epoch_end";
    case phase::checkpoint: return "checkpoint";
    case phase::last_checkpoint: return "last_checkpoint";
    case phase::evaluation: return "evaluation";
    case phase::close: return "close";
    case phase::done: return "done";
    case phase::at_point: return "at_point";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, const fit_machine& m) {
  out << fit_machine::name_of(m.phase_) << " epoch " << m.loop_.epoch << " batch " << m.loop_.batch
      << " steps " << m.loop_.steps << " next " << m.batch_;
  if (m.evaluated_ > 0) out << " evaluated " << m.evaluated_;
  if (m.in_flight_ > 0) out << " in flight " << m.in_flight_ << " of " << m.length_;
  if (m.holding()) out << " holding";
  if (m.hold_) out << " voted " << *m.hold_;
  if (m.stop_ && m.stop_->pause)
    out << (m.paused() ? " paused at " : " pause at ") << m.stop_->step;
  else if (m.stop_)
    out << " stop at " << m.stop_->step << " (" << to_string(m.stop_->why) << ')';
  if (m.ending_ != stop_reason::none) out << " ending (" << to_string(m.ending_) << ')';
  return out;
}

std::ostream& operator<<(std::ostream& out, const fit_action& action) {
  struct printer {
    std::ostream& out;

    void operator()(const fit_actions::run& a) const {
      out << "run";
      for (const auto& one : a.hooks) out << ' ' << one;
    }
    void operator()(const fit_actions::is_set_up&) const { out << "is_set_up"; }
    void operator()(const fit_actions::vote& a) const { out << "vote " << a.step; }
    void operator()(const fit_actions::step_finished& a) const {
      out << "step_finished " << a.step;
    }
    void operator()(const fit_actions::metrics_known& a) const {
      out << "metrics_known at step " << a.at.step;
      for (const auto& [key, number] : a.logged) out << ' ' << key << ' ' << number;
    }
    void operator()(const fit_actions::finished& a) const {
      out << "finished " << to_string(a.why) << " after " << a.loop.steps << " steps";
    }
  };
  std::visit(printer{out}, action);
  return out;
}

}  // namespace troupe
