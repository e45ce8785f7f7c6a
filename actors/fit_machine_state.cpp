// The rest of the fit machine: values derived from its state, and the machine as a value.
#include "actors/fit_machine.hpp"
#include "actors/hook_sequences.hpp"

#include "troupe/detail/stable_hash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace troupe {

namespace {

// The batches of a window that a segment covers.
struct train_span {
  std::int64_t first = 0;
  std::int64_t until = 0;
  std::int64_t window_first = 0;
  std::int64_t window_last = 0;
  std::int32_t splits = 0;
};

void add_train_span(const fit_plan& plan, const optimizer_facts& facts, const train_span& span,
                    position where, std::vector<hook>& out) {
  // As many as there usually are: with one batch, what an allocator has at hand (1 KiB).
  constexpr std::size_t hooks_of_a_batch = 14;
  constexpr std::size_t around = 2;
  out.reserve(static_cast<std::size_t>(span.until - span.first) * hooks_of_a_batch + around);
  if (span.first == 0) out.emplace_back(hooks::on_train_epoch_start{{where}});
  for (where.batch = span.first; where.batch < span.until; ++where.batch)
    hook_sequences::train_batch(plan, facts,
                                {where, span.window_first, span.window_last, span.splits}, out);
}

// The batches [first, until) of an evaluation, counted over all loaders of its stage.
void add_evaluated(const loader_table& loaders, const fit_intervals& lengths, std::int64_t first,
                   std::int64_t until, const position& where, std::vector<hook>& out) {
  const auto source = where.stage == stage::sanity ? stage::validate : where.stage;
  std::int64_t passed = 0;  // batches of the loaders before this one
  for (const auto& loader : loaders.all) {
    if (loader.stage != source) continue;
    const auto here = lengths.batches_of(loader, where.stage);
    auto one = where;
    one.dataloader = loader.dataloader;
    one.batch = std::max<std::int64_t>(0, first - passed);
    for (; one.batch < std::min(here, until - passed); ++one.batch)
      hook_sequences::evaluation_batch(one, out);
    passed += here;
  }
}

}  // namespace

// --- what follows from the state -----------------------------------------------------------------

void fit_machine::enter(phase next) {
  phase_ = next;
  applied_ = false;
  segment_.handled = 0;
  segment_.length = 0;
  segment_.splits = 0;
}

void fit_machine::pass_point(resume_point::next then) {
  if (!plan_->keeps_points) return;
  auto& p = point_;
  ++p.number;
  p.then = then;
  p.trained = trained_;
  p.loop = loop_;
  p.last_saved = last_saved_;
  p.ending = static_cast<std::uint8_t>(requests_.stop);
  p.save_due = requests_.save;
  p.validation_due = requests_.validate;
}

// Whether the segment in progress ends where pass_point is called.
bool fit_machine::ends_at_point() const {
  if (!plan_->keeps_points) return false;
  switch (phase_) {
    case phase::launch: return plan_->purpose != stage::call;
    case phase::window: return until_ == intervals().window_end();
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
  segment_.in_flight = 0;
  loop_ = where.loop;
  loop_.early_stopping = stop_early_states(plan_->stop_early, std::move(loop_.early_stopping));
  batch_ = loop_.batch;
  evaluated_ = until_ = 0;
  closing_ = false;
  trained_ = where.trained;
  last_saved_ = where.last_saved;
  last_snapshot_ = undefined;
  requests_.save = where.save_due;
  requests_.validate = where.validation_due;
  requests_.stop = static_cast<stop_reason>(where.ending);
  why_ = stop_reason::none;
  stop_ = {};
  point_ = where;
}

bool fit_machine::holding() const {
  const bool may = phase_ == phase::window || phase_ == phase::evaluation;
  const auto from = phase_ == phase::window ? batch_ : evaluated_;
  return may && segment_.in_flight == 0 && until_ == from && !closing_;
}

bool fit_machine::closing() const {
  return phase_ == phase::last_checkpoint || phase_ == phase::close || finished();
}

std::int64_t fit_machine::vote() const {
  if (plan_->purpose != stage::train)
    return phase_ == phase::evaluation && segment_.in_flight > 0 ? until_ : evaluated_;
  const bool inside = batch_ != loop_.batch || (phase_ == phase::window && segment_.in_flight > 0);
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
  if (where.stage != stage::train && evaluated_ > 0) where.batch = evaluated_ - 1;
  return where;
}

std::int64_t fit_machine::batches() const {
  const auto s = stage_now();
  return intervals().batches_of(s == stage::start ? plan_->purpose : s);
}

bool fit_machine::saves_on_exception() const {
  const auto& policy = plan_->checkpoint;
  return policy.enabled && policy.on_exception && plan_->purpose == stage::train &&
         point_.loop.steps > 0;
}

std::optional<loop_state> fit_machine::unsaved() const {
  const auto& p = point_;
  if (!saves_on_exception() || p.loop.steps == last_saved_) return std::nullopt;
  auto loop = p.loop;
  loop.pending_stop = p.ending;
  return loop;
}

// --- the hooks of the segment in progress --------------------------------------------------------

namespace {

void add_plateau_step(const optimizer_facts& facts, const position& at, std::vector<hook>& out) {
  if (facts.plateau_schedulers)
    out.emplace_back(hooks::lr_scheduler_step{at, hooks::lr_scheduler_step::interval::plateau});
}

}  // namespace

// A pure function of what does not change while the segment is handled: with one_hook_per_run, or
// when the lane came back early, the rest is cut from it again.
std::vector<hook> fit_machine::segment() const {
  std::vector<hook> out;
  auto where = at();
  where.batch = undefined;
  const bool validates = phase_ == phase::validation;
  if (phase_ == phase::prepare || phase_ == phase::launch) out.reserve(16);
  if (phase_ == phase::checkpoint || phase_ == phase::last_checkpoint) out.reserve(4);
  switch (phase_) {
    case phase::prepare: hook_sequences::prepare(*plan_, out); break;
    case phase::launch: hook_sequences::launch(*plan_, loaders_.all, out); break;
    case phase::train_start: out.emplace_back(hooks::on_train_start{{where}}); break;
    case phase::window:
      add_train_span(*plan_, optimizers_,
                     {batch_, until_, loop_.batch, intervals().window_end() - 1, segment_.splits},
                     where, out);
      break;
    case phase::sanity:
    case phase::validation:
    case phase::evaluation:
      if (evaluated_ == 0)
        hook_sequences::open_evaluation(
            where, validates && batch_ == loop_.batch && !optimizers_.manual, out);
      add_evaluated(loaders_, intervals(), evaluated_, until_, where, out);
      if (!closing_) break;
      hook_sequences::close_evaluation(where, out);
      where.stage = stage::train;
      where.batch = batch_;
      if (validates) add_plateau_step(optimizers_, where, out);
      break;
    case phase::epoch_end:
      hook_sequences::epoch_end(optimizers_, where, out);
      add_plateau_step(optimizers_, where, out);
      break;
    case phase::checkpoint:
    case phase::last_checkpoint:
      hook_sequences::checkpoint(optimizers_, where, intervals().saved_loop(requests_), out);
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

// --- the state as a value ------------------------------------------------------------------------

std::uint64_t fit_machine::digest() const {
  stable_hasher h;
  h.add(plan_->digest()).add(phase_).add(loop_.epoch).add(loop_.batch).add(loop_.steps);
  h.add(loop_.samples).add(loop_.cursor).add(loop_.validated).add(loop_.last.size());
  for (const auto& [key, number] : loop_.last) h.add(key).add(number);
  if (const auto& at = loop_.monitored; !at.monitor.empty())
    h.add(at.monitor).add(at.step).add(at.epoch);
  for (const auto& name : loop_.of_validation) h.add(name);
  for (const auto& one : loop_.early_stopping) h.add(one.best).add(one.has_best).add(one.waited);
  h.add(loaders_.all.size());
  for (const auto& one : loaders_.all)
    h.add(one.stage).add(one.dataloader).add(one.batches).add(one.samples).add(one.batch_samples);
  h.add(optimizers_.optimizers).add(optimizers_.step_schedulers);
  h.add(optimizers_.epoch_schedulers).add(optimizers_.plateau_schedulers);
  h.add(optimizers_.accumulates_itself);
  h.add(batch_).add(evaluated_).add(until_).add(closing_);
  h.add(segment_.handled)
      .add(segment_.length)
      .add(segment_.in_flight)
      .add(trained_)
      .add(last_saved_)
      .add(last_snapshot_);
  h.add(loaders_.resumed_epoch).add(loaders_.resumed_batch).add(loaders_.resumed_cursor);
  h.add(requests_.stop).add(why_).add(stop_.voted).add(stop_.agreed.has_value());
  if (stop_.agreed) h.add(stop_.agreed->step).add(stop_.agreed->why);
  if (stop_.agreed && stop_.agreed->pause) h.add(stop_.agreed->pause);
  if (point_.number > 0) {
    h.add(point_.number).add(point_.then).add(point_.trained).add(point_.loop.steps);
    h.add(point_.loop.epoch).add(point_.loop.batch).add(point_.last_saved).add(point_.ending);
    if (point_.save_due || point_.validation_due) h.add(point_.save_due).add(point_.validation_due);
  }
  if (joins_ || applied_) h.add(joins_).add(applied_);
  if (plan_->check_val_every_n_epoch == 0) h.add(loop_.earlier_batches);
  if (requests_.save || requests_.validate) h.add(requests_.save).add(requests_.validate);
  if (optimizers_.manual) h.add(optimizers_.manual);
  if (optimizers_.splits_batches) h.add(optimizers_.splits_batches).add(segment_.splits);
  return h.digest();
}

std::string_view to_string(fit_phase p) {
  using phase = fit_phase;
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
  out << to_string(m.phase_) << " epoch " << m.loop_.epoch << " batch " << m.loop_.batch
      << " steps " << m.loop_.steps << " next " << m.batch_;
  if (m.evaluated_ > 0) out << " evaluated " << m.evaluated_;
  if (m.segment_.in_flight > 0)
    out << " in flight " << m.segment_.in_flight << " of " << m.segment_.length;
  if (m.holding()) out << " holding";
  if (m.stop_.voted) out << " voted " << *m.stop_.voted;
  if (m.stop_.agreed && m.stop_.agreed->pause)
    out << (m.paused() ? " paused at " : " pause at ") << m.stop_.agreed->step;
  else if (m.stop_.agreed)
    out << " stop at " << m.stop_.agreed->step << " (" << to_string(m.stop_.agreed->why) << ')';
  if (m.requests_.stop != stop_reason::none)
    out << " ending (" << to_string(m.requests_.stop) << ')';
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
