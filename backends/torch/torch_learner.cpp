#include "backends/torch/torch_learner.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "backends/torch/module_state.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/detail/optimizer_state.hpp"

namespace troupe {

std::string text_without_frames(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

namespace {

// A download may take long. The hook limit of the downloading rank ends it.
constexpr std::chrono::hours preparing{24};

bool evaluates(stage s) {
  return s == stage::sanity || s == stage::validate || s == stage::test || s == stage::predict;
}

// The timer of trainer_options::max_time, beside those of a recipe.
class max_time_timer final : public timer {
public:
  using timer::timer;
  std::string state_key() const override { return "trainer.max_time"; }
};

std::vector<callback_factory> with_max_time(std::vector<callback_factory> callbacks,
                                            const trainer_options& options) {
  if (options.max_time)
    callbacks.emplace_back(max_time_timer{timer_options{.max_time = *options.max_time}});
  return callbacks;
}

}  // namespace

// The context of one hook: its position, its outcome, the rank's generator, and no gradients
// outside training. The closure of an optimizer_step opens scopes inside its own.
class torch_learner::scope {
public:
  scope(torch_learner& whose, const hook& h, const closure& inner, hook_outcome& outcome)
      : whose_(whose),
        at_(std::exchange(whose.at_, where(h))),
        outcome_(std::exchange(whose.outcome_, &outcome)),
        inner_(std::exchange(whose.inner_, &inner)),
        device_(whose.device_ ? whose.place_.kind->make_current(*whose.device_) : nullptr),
        draws_(whose.random_),
        gradients_(evaluates(whose.at_.stage) ? false : at::GradMode::is_enabled()) {
    const auto purpose = whose.about_.purpose;
    // Functional views, which such devices use, cannot be made of other tensors in that mode.
    const bool created = dynamic_cast<const module_creation*>(whose.place_.kind.get());
    if (whose.about_.options.inference_mode && evaluates(purpose) && whose.at_.stage == purpose &&
        !created)
      inference_.emplace();
  }
  ~scope() {
    whose_.at_ = at_;
    whose_.outcome_ = outcome_;
    whose_.inner_ = inner_;
  }
  scope(const scope&) = delete;
  scope& operator=(const scope&) = delete;

private:
  torch_learner& whose_;
  position at_;
  hook_outcome* outcome_;
  const closure* inner_;
  std::unique_ptr<accelerator::scope> device_;
  random_scope draws_;
  at::AutoGradMode gradients_;
  std::optional<c10::InferenceMode> inference_;
};

torch_learner::torch_learner(const learner_context& about, module_factory model, data_ptr data,
                             const torch_plugins& plugins,
                             std::shared_ptr<data_preparation> prepared,
                             std::shared_ptr<partial_state> received)
    : about_(about),
      modes_(about.options),
      model_(std::move(model)),
      data_(std::move(data)),
      prepared_(std::move(prepared)),
      random_(about.options.seed),
      precision_(make_precision(plugins.precisions, about.options.precision.name)),
      callbacks_(with_max_time(plugins.callbacks, about_.options), about_),
      place_(choose_devices(plugins.accelerators, about_.options, 0)),
      received_(std::move(received)) {
  strategy_parts parts;
  parts.about = about_;
  if (plugins.environment) parts.environment = plugins.environment(about_);
  parts.precision = precision_;
  parts.place = place_;
  if (plugins.checkpoints) about_.checkpoints = plugins.checkpoints;
  parts.files = about_.checkpoints;
  parts.moves = plugins.moves;
  strategy_ = make_strategy(plugins.strategies, about_.options.strategy.name, std::move(parts));
}

void check_precision(const precision& numbers, const optimizers& all) {
  for (std::size_t i = 0; i < all.all().size(); ++i)
    if (const auto why = numbers.obstacle(*all.all()[i].optimizer); !why.empty())
      throw user_error(
          errc::bad_configuration,
          fmt::format("precision {} cannot train with optimizer {}: {}", numbers.name(), i, why));
}

namespace {

// Guards the beginning and the end of a module's use by a rank.
std::mutex attaching;

}  // namespace

torch_learner::~torch_learner() {
  const std::lock_guard lock{attaching};
  if (module_) module_->attach(nullptr, {});
}

void torch_learner::bind(std::shared_ptr<communicator> world, generation_id generation) {
  generation_ = generation;
  world_ = world;
  strategy_->bind(std::move(world), generation);
}

hook_outcome torch_learner::on(const hook& h, const closure& inner) {
  hook_outcome outcome;
  const scope inside(*this, h, inner, outcome);
  at::RecordFunction record{at::RecordScope::USER_SCOPE};
  if (record.isActive()) record.before(std::string{name(h)});
  const bool measured = about_.options.profiler != profiler_kind::none;
  const auto began = measured ? clock() : std::chrono::nanoseconds{0};
  const auto around = std::exchange(inner_time_, std::chrono::nanoseconds{0});
  tensors_kept_ = common_stays_ = false;
  if (at_.batch == undefined && at_.stage != stage::start) draw_from(name(h));
  try {
    h.visit([this](const auto& one) { handle(one); });
  } catch (...) {
    thrown_ = std::current_exception();
    throw;
  }
  // The waiting time of a closure's hooks is in their own outcomes.
  outcome.waited = strategy_->waited() - std::exchange(waited_, strategy_->waited());
  if (measured) {
    const auto took = clock() - began;
    profile_.add(name(h), took - inner_time_, outcome.waited);
    inner_time_ = around + took;
  }
  return outcome;
}

std::chrono::nanoseconds torch_learner::clock() const {
  return about_.now ? about_.now() : std::chrono::steady_clock::now().time_since_epoch();
}

// The last hook that failed waited for a rank that was lost. So the others fail there as well, and
// what the hook has done is undone on all.
bool torch_learner::was_interrupted() const {
  if (!thrown_) return false;
  try {
    std::rethrow_exception(thrown_);
  } catch (const generation_closed&) {
    return true;
  } catch (...) {
    return false;
  }
}

// The first of several optimizers, loaders or parts in time draws as a single one does.
std::string torch_learner::purpose_of(std::string_view hook, std::string_view what,
                                      std::int64_t number) {
  if (number <= 0) return std::string{hook};
  return what.empty() ? fmt::format("{} {}", hook, number)
                      : fmt::format("{} {} {}", hook, what, number);
}

void torch_learner::draw_from(std::string_view purpose) {
  random_.reset({at_.epoch, at_.batch, about_.rank, purpose});
}

void torch_learner::queue(value what) {
  if (outcome_) outcome_->queued.push_back(std::move(what));
}

byte_exchange torch_learner::exchange() {
  return [this](std::span<const std::byte> mine) { return strategy_->gather_bytes(mine); };
}

torch::optim::Optimizer& torch_learner::optimizer(const position& at) {
  return *optimizers_.all().at(at.optimizer).optimizer;
}

namespace {

// Null: a module that was made on the host is moved to the device.
std::unique_ptr<accelerator::scope> creation_on(const chosen_devices& place, const strategy& how) {
  const auto* where = dynamic_cast<const module_creation*>(place.kind.get());
  if (!where) return nullptr;
  const auto device = how.root_device();
  return device.type() == place.kind->type() ? where->create_on(device) : nullptr;
}

}  // namespace

// --- setting up ----------------------------------------------------------------------------------

void torch_learner::handle(const hooks::connect&) {
  random_.reset_for_initialisation();
  {
    const auto held = precision_->init_context();
    const auto here = creation_on(place_, *strategy_);
    module_ = model_ ? model_() : nullptr;
  }
  if (!module_)
    throw user_error(errc::job_failed, "the module factory made no module: return one per call");
  {
    const std::lock_guard lock{attaching};
    if (const auto* of = module_->strategy_in_use(); of && of != strategy_.get()) {
      module_ = nullptr;
      throw user_error(errc::job_failed,
                       "the module factory made a module that another rank trains: make a new one "
                       "in each call");
    }
    module_->attach(this, [this] { return length(); });
  }
  strategy_->connect(module_);
}

void torch_learner::handle(const hooks::setup_environment&) {
  strategy_->setup_environment();
  take_device();
}

// A strategy of the program's own may compute elsewhere than the job's accelerator.
void torch_learner::take_device() {
  const auto device = strategy_->root_device();
  if (device.type() != place_.kind->type()) return;
  device_ = device;
  random_.add_device(place_.kind->generator(device));
}

void torch_learner::mark_step() {
  if (!device_) return;
  auto& cursor = cursor_at(at_);
  const auto every = cursor.way->settings().batches_per_execution;
  const auto done = at_.batch + 1;
  if (every > 1 && done - cursor.marked < every && done < cursor.last) return;
  cursor.marked = done;
  place_.kind->mark_step(*device_);
}

// In a later generation a rank may be on a host where none has prepared: its number on the host is
// that of a process that is gone. So the first rank that a process has prepares.
void torch_learner::handle(const hooks::prepare_data&) {
  const auto prepare = [&](bool again) {
    const std::lock_guard one_by_one{prepared_->guard};
    if (prepared_->done && !again) return;
    if (data_) data_->prepare_data();
    module_->prepare_data();
    prepared_->done = true;
  };
  if (strategy_->local_rank() == 0) prepare(true);
  strategy_->barrier("prepare_data", preparing);
  if (generation_ > generation_id{1}) return prepare(false);
  const std::lock_guard lock{prepared_->guard};
  prepared_->done = true;
}

void torch_learner::handle(const hooks::setup&) {
  if (data_) data_->setup(about_.purpose);
  data_set_up_ = true;
  notify(&callback::setup, &troupe::module::setup, &strategy::setup, about_.purpose);
}

void torch_learner::handle(const hooks::model_sharded_context&) {
  building_ = strategy_->model_sharded_context();
}

void torch_learner::handle(const hooks::configure_model&) {
  const auto here = creation_on(place_, *strategy_);
  if (strategy_->calls_configure_model()) module_->configure_model();
  building_.reset();
}

void torch_learner::handle(const hooks::model_to_device&) {
  if (about_.initial && !loaded_) take_initial(*about_.initial);
  strategy_->model_to_device();
  if (std::exchange(weights_due_, false)) take_loaded_weights();
}

void torch_learner::handle(const hooks::setup_optimizers&) {
  if (!strategy_->late_optimizers()) configure_optimizers();
}

namespace {

void check_registered(const torch::nn::Module& module, const optimizers& all) {
  std::set<const c10::TensorImpl*> known;
  for (const auto& one : module.parameters()) known.insert(one.unsafeGetTensorImpl());
  for (std::size_t i = 0; i < all.all().size(); ++i)
    for (const auto& group : all.all()[i].optimizer->param_groups())
      for (const auto& one : group.params())
        if (!known.contains(one.unsafeGetTensorImpl()))
          throw user_error(errc::job_failed,
                           fmt::format("optimizer {} has a parameter that is not the module's, so "
                                       "neither checkpoints nor new ranks would have it: register "
                                       "it, by register_parameter or register_module",
                                       i));
}

}  // namespace

void torch_learner::configure_optimizers() {
  optimizers_ = module_->configure_optimizers();
  auto& all = optimizers_.all();
  if (all.empty())
    throw user_error(errc::job_failed,
                     "configure_optimizers returned no optimizer: return at least one to fit");
  check_registered(*module_, optimizers_);
  check_precision(*precision_, optimizers_);
  strategy_->setup_optimizers(optimizers_);
  optimizers_there_ = true;
  describe_optimizers();
}

void torch_learner::describe_optimizers() {
  const auto& all = optimizers_.all();
  optimizer_facts facts;
  facts.optimizers = static_cast<std::int32_t>(all.size());
  facts.accumulates_itself = strategy_->handles_gradient_accumulation();
  split_steps_ = module_->truncated_bptt_steps();
  if (split_steps_ == 0) split_steps_ = about_.options.truncated_bptt_steps;
  if (split_steps_ < 0)
    throw user_error(errc::job_failed,
                     fmt::format("truncated_bptt_steps returned {}: return a number of steps in "
                                 "time, or 0 to train whole batches",
                                 split_steps_));
  facts.splits_batches = splits_batches();
  facts.manual = manual_ = !module_->automatic_optimization();
  if (manual_) refuse_manual();
  for (const auto& one : all)
    for (const auto& schedule : one.schedulers) {
      if (manual_) continue;  // training_step moves them
      const auto stepwise = schedule.when().every == schedule::interval::step;
      facts.plateau_schedulers |= schedule.plateau();
      facts.step_schedulers |= !schedule.plateau() && stepwise;
      facts.epoch_schedulers |= !schedule.plateau() && !stepwise;
    }
  window_losses_.assign(all.size(), 0);
  step_schedulers_ = facts.step_schedulers;
  outcome_->optimizers = facts;
}

void torch_learner::handle(const hooks::setup_precision&) { set_up_precision(); }

// The precision may replace optimizers and schedulers.
void torch_learner::set_up_precision() {
  const auto before = optimizers_;  // so that no new one gets the address of an old one
  strategy_->setup_precision();
  if (!optimizers_there_) return;
  const auto same =
      std::ranges::equal(before.all(), optimizers_.all(), {}, &scheduled_optimizer::optimizer,
                         &scheduled_optimizer::optimizer);
  if (!same) strategy_->setup_optimizers(optimizers_);
  describe_optimizers();
}

void torch_learner::handle(const hooks::on_fit_start&) {
  refuse_unsaved();
  notify(&callback::on_fit_start, &troupe::module::on_fit_start, &strategy::on_fit_start);
}
// A fit that was resumed at its end has no on_train_end. It reports what the checkpoint has of its
// last step: the run that wrote it reported this after the checkpoint, or was killed before.
void torch_learner::handle(const hooks::on_fit_end& h) {
  why_ended_ = h.why;
  if (!end_reported_) report_end();
  notify(&callback::on_fit_end, &troupe::module::on_fit_end, &strategy::on_fit_end);
}

void torch_learner::handle(const hooks::pre_dispatch&) {
  strategy_->pre_dispatch();
  if (about_.purpose != stage::train || optimizers_there_ || !strategy_->late_optimizers()) return;
  configure_optimizers();
  set_up_precision();
}

void torch_learner::handle(const hooks::dispatch&) { strategy_->dispatch(); }

void torch_learner::handle(const hooks::post_dispatch&) {
  strategy_->post_dispatch();
  auto last = strategy_->add_to_queue(logged_);
  if (!last.empty()) queue(deep_copy(last));
  if (about_.options.profiler != profiler_kind::none) queue(profile_.as_value());
}

// --- barriers of a run ---------------------------------------------------------------------------

void torch_learner::handle(const hooks::barrier& h) {
  strategy_->barrier(h.label, std::chrono::nanoseconds{0});
}

// --- ends ----------------------------------------------------------------------------------------

// The exception of the first cause, if this rank threw it.
std::exception_ptr torch_learner::cause_of(const hooks::on_exception& h) const {
  if (thrown_) {
    const auto mine = describe(thrown_, text_without_frames);
    if (mine.type == h.type && mine.what == h.what) return thrown_;
  }
  return std::make_exception_ptr(std::runtime_error{h.what});
}

void torch_learner::handle(const hooks::teardown& h) {
  cursors_.clear();
  building_.reset();
  strategy_->teardown(h.orderly);
  if (!module_) return;
  callbacks_.call(*module_, &callback::teardown, about_.purpose);
  module_->teardown(about_.purpose);
}

}  // namespace troupe
