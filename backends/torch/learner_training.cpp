#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "backends/torch/learner_json.hpp"
#include "backends/torch/torch_learner.hpp"

namespace troupe {

void torch_learner::handle(const hooks::on_train_start&) {
  if (goes_by_clock()) saved_at_ = validated_at_ = clock();
  notify(&callback::on_train_start, &troupe::module::on_train_start, &strategy::on_train_start);
  callbacks_.check_keys();
  if (groups_at_start_.empty()) groups_at_start_ = group_sizes_of(optimizers_);
  at_start_ = flags_of(*module_);
  set_flags(*module_, with_changes(*module_, *at_start_, learner_json::parse_state(hook_changes_)));
}

void torch_learner::handle(const hooks::on_train_epoch_start& h) {
  step_book_.clear();
  last_step_.reset();
  stepped_ = false;
  steps_reported_ = true;
  done_.epoch = h.at.epoch;
  done_.batch = done_.cursor = 0;
  if (manual_) refuse_empty_share(h.at.epoch);
  notify(&callback::on_train_epoch_start, &troupe::module::on_train_epoch_start,
         &strategy::on_train_epoch_start, h.at.epoch);
}

void torch_learner::handle(const hooks::on_train_batch_start& h) {
  // Sets the last step's values aside when the next step begins.
  if (std::exchange(stepped_, false)) last_step_ = std::exchange(step_book_, {});
  for (auto* book : {&step_book_, &epoch_book_}) book->begin_batch(!idle());
  callbacks_.call(*module_, &callback::on_train_batch_start, batch_, h.at.batch);
  const auto word = module_->on_train_batch_start(batch_, h.at.batch);
  strategy_->on_train_batch_start(batch_, h.at.batch);
  if (word == batch_verdict::undecided) return;
  if (!strategy_->reduce_boolean_decision(word == batch_verdict::skip_epoch, decision::any)) return;
  outcome_->verdict = run_verdict::skip_epoch;
  forget_batch();
  step_book_.clear();  // no step has these values
  if (last_step_) step_book_ = *std::exchange(last_step_, {});
}

void torch_learner::handle(const hooks::tbptt_split_batch&) {
  if (!idle()) splits_of_batch_ = module_->tbptt_split_batch(batch_.get(), split_steps_);
  outcome_->splits = splits_ = agreed_splits();
}

// A rank without samples takes the number of the others.
std::int32_t torch_learner::agreed_splits() {
  const auto mine = static_cast<std::int32_t>(splits_of_batch_.size());
  if (!idle() && mine == 0)
    throw user_error(errc::job_failed,
                     "tbptt_split_batch returned no part: return at least one, the whole batch");
  std::vector<std::int32_t> all;
  for (const auto& bytes : strategy_->gather_bytes(std::as_bytes(std::span{&mine, 1}))) {
    all.push_back(0);
    std::memcpy(&all.back(), bytes.data(), sizeof mine);
  }
  const auto most = std::ranges::max(all);
  for (const auto one : all)
    if (one != 0 && one != most)
      throw user_error(errc::job_failed,
                       fmt::format("the ranks split this batch into different numbers of parts in "
                                   "time ({}, by rank; 0 is a rank without samples): each part is "
                                   "a step of all ranks, so give their samples the same length",
                                   fmt::join(all, ", ")));
  return most;
}

// As in Lightning, a step must return hiddens where batches are split in time. Elsewhere it must
// not, because no later step would get them.
void torch_learner::take_hiddens() {
  auto given = output_.hiddens();
  if (splits_batches() && given.empty() && output_.has_loss())
    throw user_error(errc::job_failed,
                     "training_step returned no hiddens: with truncated_bptt_steps return a map "
                     "with \"loss\" and \"hiddens\"");
  if (!splits_batches() && !given.empty())
    throw user_error(errc::job_failed,
                     "training_step returned hiddens, but batches are not split in time: set "
                     "truncated_bptt_steps, or give them another name");
  next_hiddens_ = map_tensors(given, [](const at::Tensor& t) { return t.detach(); });
}

// Whether this optimizer's update is the last one of its step.
bool torch_learner::ends_step(const position& at) const {
  return static_cast<std::size_t>(at.optimizer) + 1 == optimizers_.all().size() &&
         (!splits_batches() || at.split + 1 == splits_);
}

void torch_learner::forget_batch() {
  batch_ = {};
  output_ = {};
  loss_ = at::Tensor{};
  splits_of_batch_.clear();
  split_ = 0;
  hiddens_ = next_hiddens_ = {};
}

// With several optimizers a step trains the parameters of its own optimizer only. During the step,
// parameters that belong to other optimizers only do not require a gradient.
void torch_learner::freeze_others(std::vector<std::pair<at::Tensor, bool>>& before) {
  const auto& all = optimizers_.all();
  if (all.size() < 2) return;
  std::unordered_set<c10::TensorImpl*> own;
  for (const auto& group : optimizer().param_groups())
    for (const auto& parameter : group.params()) own.insert(parameter.unsafeGetTensorImpl());
  for (const auto& other : all)
    for (const auto& group : other.optimizer->param_groups())
      for (const auto& parameter : group.params()) {
        if (own.contains(parameter.unsafeGetTensorImpl()) || !parameter.requires_grad()) continue;
        before.emplace_back(parameter, true);
        parameter.set_requires_grad(false);
      }
}

namespace {

struct requires_grad_guard {
  std::vector<std::pair<at::Tensor, bool>> before;
  ~requires_grad_guard() {
    for (auto& [parameter, required] : before) parameter.set_requires_grad(required);
  }
};

// LibTorch's text about batch norm says neither where the single sample comes from nor what to do.
step_output step_of(strategy& by, const batch& part, std::int64_t index) {
  try {
    return by.training_step(part, index);
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    if (part.samples() != 1 || text.find("more than 1 value per channel") == text.npos) throw;
    std::throw_with_nested(
        user_error(errc::bad_configuration,
                   fmt::format("this rank has one sample in micro-batch {} of the epoch, and batch "
                               "norm needs more: set drop_last for the training data, or choose "
                               "another batch size",
                               index)));
  }
}

}  // namespace

void torch_learner::handle(const hooks::training_step& h) {
  output_ = {};
  loss_ = at::Tensor{};
  in_step_ = true;
  if (idle() && manual_)  // of a resumed epoch, for example
    throw user_error(errc::job_failed,
                     "this rank has no samples in the batch, and in manual optimization the others "
                     "wait for its gradients: set drop_last for the training data");
  if (idle()) return;
  draw_from(purpose_of(purpose_of(h.name, "", h.at.split), "optimizer", h.at.optimizer));
  if (manual_) {
    in_manual_ = true;
    output_ = step_of(*strategy_, batch_, h.at.batch);
    in_manual_ = false;
    precision_->end_manual_step();
    return;
  }
  requires_grad_guard later;
  freeze_others(later.before);
  if (!splits_batches()) {
    output_ = step_of(*strategy_, batch_, h.at.batch);
    return;
  }
  if (std::exchange(split_, h.at.split) != h.at.split) hiddens_ = std::exchange(next_hiddens_, {});
  const batch part{splits_of_batch_.at(static_cast<std::size_t>(split_)), batch_.samples()};
  output_ = step_of(*strategy_, part, h.at.batch);
}

void torch_learner::handle(const hooks::training_step_end& h) {
  if (manual_) {
    output_ = module_->training_step_end(strategy_->training_step_end(std::move(output_)));
    return end_manual_step(h.at);
  }
  if (idle()) return;
  requires_grad_guard later;
  freeze_others(later.before);
  output_ = module_->training_step_end(strategy_->training_step_end(std::move(output_)));
  take_hiddens();
  if (output_.has_loss() || (output_.empty() && strategy_->world() == 1)) return;
  if (output_.empty())
    throw user_error(errc::job_failed,
                     "training_step returned nothing: with several ranks each step needs a loss, "
                     "because the others wait for its gradients");
  output_.loss();
}

void torch_learner::handle(const hooks::on_before_zero_grad&) {
  callbacks_.call(*module_, &callback::on_before_zero_grad, optimizer());
  module_->on_before_zero_grad(optimizer());
}

void torch_learner::handle(const hooks::optimizer_zero_grad& h) {
  module_->optimizer_zero_grad(h.at.epoch, h.at.batch, optimizer());
  strategy_->zero_gradients(h.at.optimizer);
}

void torch_learner::handle(const hooks::pre_backward&) {
  if (!output_.has_loss()) return;
  loss_ = strategy_->pre_backward(output_.loss());
  if (!loss_.defined())
    throw user_error(errc::job_failed,
                     fmt::format("pre_backward of strategy \"{}\" or precision \"{}\" returned no "
                                 "loss: return the one that it got, or another",
                                 strategy_->name(), precision_->name()));
}

void torch_learner::handle(const hooks::on_before_backward&) {
  if (!loss_.defined()) return;
  callbacks_.call(*module_, &callback::on_before_backward, loss_);
  module_->on_before_backward(loss_);
}

void torch_learner::handle(const hooks::backward& h) {
  const auto layout = cursor_at(h.at).way->layout(h.at.epoch);
  const auto total = layout.samples(h.window_first(), h.window_last());
  window_first_ = h.window_first();
  window_last_ = h.window_last();
  backward_plan plan;
  plan.optimizer = h.at.optimizer;
  plan.synchronize = h.synchronize();
  plan.idle = !loss_.defined();
  plan.arguments = output_.backward_arguments();
  const bool engine = strategy_->handles_gradient_accumulation();
  if (!engine) plan.weight = static_cast<double>(batch_.samples()) / static_cast<double>(total);
  plan.wants_stop = wants_stop_;
  plan.logged = keeps_points() && !epoch_book_.empty();
  auto& sum = window_losses_.at(h.at.optimizer);
  if (engine || h.at.batch == h.window_first()) sum = 0;
  if (!plan.idle) sum += plan.weight * output_.loss().item<double>();
  plan.loss = sum;
  const auto word = strategy_->backward(loss_, plan);
  if (h.synchronize() || engine) word_ = word;
  word_.stop = h.synchronize() && word.stop;
}

void torch_learner::handle(const hooks::on_after_backward&) {
  callbacks_.call(*module_, &callback::on_after_backward);
  module_->on_after_backward();
}

void torch_learner::handle(const hooks::post_backward&) {
  if (loss_.defined()) loss_ = strategy_->post_backward(loss_);
}

void torch_learner::handle(const hooks::on_before_optimizer_step&) {
  precision_->pre_optimizer_step(optimizer());
  callbacks_.call(*module_, &callback::on_before_optimizer_step, optimizer());
  module_->on_before_optimizer_step(optimizer());
}

void torch_learner::handle(const hooks::clip_gradients& h) {
  module_->configure_gradient_clipping(optimizer(), h.limit, h.how);
}

void torch_learner::handle(const hooks::optimizer_step& h) {
  const auto& inner = *inner_;
  int calls = 0;
  bool stop = false;
  const step_closure run = [&] {
    if (++calls > 1 && window_first_ != window_last_ && !strategy_->handles_gradient_accumulation())
      throw user_error(errc::job_failed,
                       "an optimizer that calls its closure more than once cannot accumulate: set "
                       "accumulate_grad_batches to 1");
    inner();
    stop |= word_.stop;
    if (keeps_points()) before_update(h.at);
    if (!loss_.defined() && strategy_->world() == 1) return at::Tensor{};
    return at::scalar_tensor(
        word_.loss, loss_.defined() ? loss_.options().requires_grad(false) : at::TensorOptions{});
  };
  module_->optimizer_step(h.at.epoch, h.at.batch, optimizer(), run);
  if (calls == 0)
    throw user_error(errc::job_failed,
                     "optimizer_step did not call its closure: call it, or the base's");
  precision_->end_optimizer_step(optimizer());
  if (h.at.batch != window_last_) return;  // a step of the strategy's own engine
  if (!keeps_points()) {
    synchronize_buffers();
    if (ends_step(h.at)) look_at_clock();
  }
  if (stop) report_stop();
  mark_step();
  finite_ = finite_ && std::isfinite(word_.loss);
  if (!ends_step(h.at)) return;
  stepped_ = true;
  steps_reported_ = false;
  if (!std::exchange(finite_, true)) ++non_finite_steps_;
  const auto layout = cursor_at(h.at).way->layout(h.at.epoch);
  outcome_->samples = layout.samples(window_first_, window_last_);
  done_.batch = h.at.batch + 1;
  done_.steps = h.at.step + 1;
  done_.samples += outcome_->samples;
  done_.cursor += outcome_->samples;
  in_step_ = step_schedulers_;
  report_due();
  if (keeps_points()) step_updated(h.at);
}

// Measures first: their sums are buffers, which become rank 0's.
void torch_learner::synchronize_buffers() {
  if (!measures_) measures_.emplace(*module_);
  (*measures_)(*strategy_);
  strategy_->synchronize_buffers();
}

void torch_learner::handle(const hooks::lr_scheduler_step& h) {
  in_epoch_schedules_ = h.every != schedule::interval::step;
  for (auto& one : optimizers_.all())
    for (auto& schedule : one.schedulers) {
      const auto due = schedule.plateau() ? schedule::interval::plateau : schedule.when().every;
      if (due != h.every) continue;
      std::optional<double> metric;
      if (const auto found = logged_.find(schedule.when().monitor);
          schedule.plateau() && found != logged_.end())
        metric = found->second;
      if (schedule.plateau() && !plateau_due(h.at, schedule.when().monitor)) continue;
      module_->lr_scheduler_step(schedule, metric);
    }
  in_epoch_schedules_ = false;
  if (h.every != schedule::interval::step) return;
  in_step_ = false;
  if (keeps_points() && stepped_) complete_step();
}

void torch_learner::handle(const hooks::on_train_batch_end& h) {
  if (stepped_) refuse_unsaved_optimizers();
  callbacks_.call(*module_, &callback::on_train_batch_end, output_, batch_, h.at.batch);
  if (step_end_due_) callbacks_.keep(kept_->callbacks);  // the module's hook may fail
  callbacks_behind_ = false;
  module_->on_train_batch_end(output_, batch_, h.at.batch);
  strategy_->on_train_batch_end(output_, batch_, h.at.batch);
  keep_end_of_step();
  const auto every = std::max<std::int64_t>(about_.options.log_every_n_steps, 1);
  const bool due = stepped_ && h.at.step % every == 0;
  if (due) report_steps();
  if (due || !logged_.contains(non_finite_name)) report_non_finite();
  // A single rank needs no agreement.
  if (wants_stop_ && strategy_->world() == 1) report_stop();
  forget_batch();
}

bool torch_learner::goes_by_clock() const {
  const auto& o = about_.options;
  return o.fast_dev_run == 0 && (o.checkpoint.every || o.val_check_time);
}

// Rank 0's clock decides for all ranks. In jobs that can restart they agree before the update, so a
// rank that has done the step knows what is due after it.
void torch_learner::look_at_clock() {
  if (!goes_by_clock()) return;
  const auto& saves = about_.options.checkpoint.every;
  const auto& validates = about_.options.val_check_time;
  const auto now = clock();
  const std::array<bool, 2> mine{saves && now - saved_at_ >= *saves,
                                 validates && now - validated_at_ >= *validates};
  const auto all = strategy_->gather_bytes(std::as_bytes(std::span{mine}));
  save_due_ |= all.at(0).at(0) != std::byte{0};
  validation_due_ |= all.at(0).at(1) != std::byte{0};
  if (save_due_) saved_at_ = now;
}

// How long ago, because the clocks of two processes may differ. Any rank may take rank 0's place.
std::string torch_learner::clocks_text() const {
  if (!goes_by_clock()) return {};
  const auto now = clock();
  return nlohmann::json{(now - saved_at_).count(), (now - validated_at_).count()}.dump();
}

void torch_learner::take_clocks(const std::string& text) {
  if (!goes_by_clock()) return;
  const auto ago = nlohmann::json::parse(text).get<std::array<std::int64_t, 2>>();
  const auto now = clock();
  saved_at_ = now - std::chrono::nanoseconds{ago[0]};
  validated_at_ = now - std::chrono::nanoseconds{ago[1]};
}

void torch_learner::report_due() {
  outcome_->save_due = std::exchange(save_due_, false);
  outcome_->validation_due = std::exchange(validation_due_, false);
}

void torch_learner::handle(const hooks::on_train_epoch_end& h) {
  in_step_ = false;  // of a window that skip_epoch interrupted
  callbacks_.end_epoch(*module_, h.at.epoch, false);
  module_->on_train_epoch_end(h.at.epoch);
  strategy_->on_train_epoch_end(h.at.epoch);
  if (callbacks_.has_monitors()) before_end_ = {step_book_, epoch_book_, logged_, steps_reported_};
  if (!steps_reported_) report_steps();
  report_non_finite();
  report(epoch_book_);
  if (callbacks_.has_monitors()) {
    callbacks_.end_epoch(*module_, h.at.epoch, true);
    report(epoch_book_);  // what they logged
    before_end_.reset();
  }
  make_point_equal();
  books_ = nullptr;
  agree_on_stop();
  ++done_.epoch;
  done_.earlier_batches += done_.batch;
  done_.batch = done_.cursor = 0;
}

// What the last step and the epoch in progress have logged.
void torch_learner::report_end() {
  end_reported_ = true;
  before_end_ = {step_book_, epoch_book_, logged_, steps_reported_};
  if (!steps_reported_) report_steps();
  report_non_finite();
  report(epoch_book_);
}

void torch_learner::handle(const hooks::on_train_end& h) {
  why_ended_ = h.why;
  report_end();
  notify(&callback::on_train_end, &troupe::module::on_train_end, &strategy::on_train_end);
}

void torch_learner::agree_on_stop() {
  if (strategy_->reduce_boolean_decision(wants_stop_, decision::any)) report_stop();
}

// From here on the fit remembers it.
void torch_learner::report_stop() {
  outcome_->stop = true;
  wants_stop_ = false;
  if (done_.pending_stop == 0) done_.pending_stop = static_cast<std::uint8_t>(stop_reason::hook);
}

}  // namespace troupe
