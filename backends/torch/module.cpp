#include "troupe/module.hpp"

#include <fmt/format.h>

#include "backends/torch/sync_layers.hpp"
#include "backends/torch/time_split.hpp"

namespace troupe {

namespace {

[[noreturn]] void not_written(std::string_view what) {
  throw user_error(errc::job_failed,
                   fmt::format("the module has no {}: override it in your module", what));
}

double number_of(const at::Tensor& tensor) {
  if (tensor.numel() == 1) return tensor.item<double>();
  throw user_error(
      errc::job_failed,
      fmt::format("log: a tensor of {} numbers is no number: reduce it to one", tensor.numel()));
}

}  // namespace

step_output module::training_step(const batch&, std::int64_t) { not_written("training_step"); }
step_output module::validation_step(const batch&, std::int64_t) { return {}; }
step_output module::test_step(const batch&, std::int64_t) { return {}; }
value module::predict_step(const batch&, std::int64_t) { not_written("predict_step"); }
optimizers module::configure_optimizers() { not_written("configure_optimizers"); }

void module::on_exception(const std::exception_ptr&, std::string_view, std::string_view) {}

value module::on_before_batch_transfer(value b, std::int32_t) { return b; }
value module::on_after_batch_transfer(value b, std::int32_t) { return b; }

batch_verdict module::on_train_batch_start(const batch&, std::int64_t) {
  return batch_verdict::undecided;
}
void module::on_train_batch_end(const step_output&, const batch&, std::int64_t) {}

void module::optimizer_zero_grad(std::int64_t, std::int64_t, torch::optim::Optimizer&) {}

void module::backward(const at::Tensor& loss, const value&) { loss.backward(); }

void module::configure_gradient_clipping(torch::optim::Optimizer& optimizer, double limit,
                                         clipping how) {
  if (services_) services_->strategy_in_use().clip_gradients(optimizer, limit, how);
}

void module::optimizer_step(std::int64_t, std::int64_t, torch::optim::Optimizer& optimizer,
                            const step_closure& closure) {
  if (services_)
    return services_->strategy_in_use().optimizer_step(optimizer, services_->at().optimizer,
                                                       closure, *this);
  optimizer.step(closure);
}

void module::lr_scheduler_step(scheduler& which, std::optional<double> metric) {
  which.step(metric);
}

// --- manual optimization -------------------------------------------------------------------------

namespace {

[[noreturn]] void outside_of_training_step(std::string_view what) {
  throw user_error(errc::job_failed,
                   fmt::format("{}: call it in training_step of a run, in a module whose "
                               "automatic_optimization returns false",
                               what));
}

}  // namespace

void module::manual_backward(const at::Tensor& loss) {
  if (!services_) outside_of_training_step("manual_backward");
  services_->backward_manually(loss);
}

manual_optimizer module::optimizer(std::int32_t index) const {
  auto* all = optimizers_in_use();
  if (!all) outside_of_training_step("optimizer");
  const auto size = static_cast<std::int32_t>(all->all().size());
  if (index < 0 || index >= size)
    throw user_error(errc::job_failed, fmt::format("optimizer({}): configure_optimizers returned "
                                                   "{}, which are counted from 0",
                                                   index, size));
  return {*services_, *all->all()[static_cast<std::size_t>(index)].optimizer, index};
}

void manual_optimizer::zero_grad() const {
  auto& how = services_->strategy_in_use();
  how.zero_gradients(index_);
  how.precision_in_use().on_zero_grad(*optimizer_);
}
void manual_optimizer::step() const { services_->step_manually(index_, {}); }
void manual_optimizer::step(const step_closure& closure) const {
  services_->step_manually(index_, closure);
}

std::vector<value> module::tbptt_split_batch(const value& whole, std::int64_t steps) {
  return split_in_time(whole, steps);
}

// --- evaluation ----------------------------------------------------------------------------------

// The user may have put submodules into eval mode for the whole run, e.g. a batch norm.
void module::remember_modes() {
  modes_.clear();
  follow_replaced_norms(*this);
  for (const auto& one : modules(/*include_self=*/false))
    modes_.emplace_back(one, one->is_training());
  self_training_ = is_training();
}

void module::restore_modes() {
  train(self_training_);
  for (const auto& [one, training] : modes_) one->train(training);
  modes_.clear();
}

void module::on_validation_model_zero_grad() {
  for (const auto& parameter : parameters())
    if (parameter.defined()) parameter.mutable_grad() = at::Tensor{};
}
void module::on_validation_model_eval() { eval(); }
void module::on_validation_model_train() { restore_modes(); }
void module::on_test_model_eval() { eval(); }
void module::on_test_model_train() { restore_modes(); }
void module::on_predict_model_eval() { eval(); }
void module::on_predict_model_train() { restore_modes(); }

void module::on_validation_batch_start(const batch&, std::int64_t, std::int32_t) {}
void module::on_validation_batch_end(const step_output&, const batch&, std::int64_t, std::int32_t) {
}
void module::on_test_batch_start(const batch&, std::int64_t, std::int32_t) {}
void module::on_test_batch_end(const step_output&, const batch&, std::int64_t, std::int32_t) {}
void module::on_predict_batch_start(const batch&, std::int64_t, std::int32_t) {}
void module::on_predict_batch_end(const value&, const batch&, std::int64_t, std::int32_t) {}

// --- services of the run -------------------------------------------------------------------------

void module::log(std::string_view name, double number, const log_options& how) {
  if (!services_) return;
  const auto samples = how.batch_size.value_or(services_->samples());
  const auto count = how.reduce == log_reduction::mean ? static_cast<double>(samples) : 1;
  services_->log(name, how.reduce == log_reduction::mean ? number * count : number, count, how);
}

void module::log_dict(std::initializer_list<std::pair<std::string_view, loggable>> numbers,
                      const log_options& how) {
  for (const auto& [name, number] : numbers)
    std::visit([&, &name = name](const auto& x) { log(name, x, how); }, number);
}

void module::log(std::string_view name, const at::Tensor& number, const log_options& how) {
  if (services_) log(name, number_of(number), how);
}

void module::log_ratio(std::string_view name, double sum, double count, const log_options& how) {
  if (services_) services_->log(name, sum, count, how);
}

const metrics& module::logged() const {
  static const metrics none;
  return services_ ? services_->logged() : none;
}

const value& module::hiddens() const {
  static const value none;
  return services_ ? services_->hiddens() : none;
}

void module::add_to_queue(const value& what) {
  if (services_) services_->queue(deep_copy(what));
}

void module::save_checkpoint(const std::string& path, const value& storage_options) {
  if (!services_)
    throw user_error(errc::checkpoint, "save_checkpoint outside of a run: call it in a hook");
  services_->save(path, storage_options);
}

void module::stop() {
  if (services_) services_->stop();
}

namespace {

[[noreturn]] void no_length() {
  throw user_error(errc::bad_usage,
                   "batches_per_epoch, estimated_steps: only a fit has them, from setup on");
}

}  // namespace

std::int64_t module::batches_per_epoch() const {
  if (!length_) no_length();
  return length_().batches;
}
std::optional<std::int64_t> module::estimated_steps() const {
  if (!length_) no_length();
  return length_().steps;
}

bool module::is_last_batch() const { return services_ && services_->is_last_batch(); }

stop_reason module::why_ended() const {
  return services_ ? services_->why_ended() : stop_reason::none;
}

const position& module::at() const {
  static const position nowhere;
  return services_ ? services_->at() : nowhere;
}

bool module::gradients_are_read() const {
  return reads_gradients() || (services_ && services_->callbacks_read_gradients());
}

optimizers* module::optimizers_in_use() const {
  return services_ ? services_->configured() : nullptr;
}

strategy* module::strategy_in_use() const {
  return services_ ? &services_->strategy_in_use() : nullptr;
}
std::int32_t module::rank() const { return services_ ? services_->strategy_in_use().rank() : 0; }
std::int32_t module::world() const { return services_ ? services_->strategy_in_use().world() : 1; }

value module::reduce(const value& what, std::string_view operation, const subgroup& among) {
  if (services_) return services_->strategy_in_use().reduce(what, operation, among);
  named_reduction(operation);
  return detached_copy(what);
}

at::Tensor module::reduce(const at::Tensor& what, std::string_view operation,
                          const subgroup& among) {
  return unboxed(reduce(boxed(what), operation, among));
}

value module::broadcast(const value& what, std::int32_t source, const subgroup& among) {
  return services_ ? services_->strategy_in_use().broadcast(what, source, among) : what;
}

value module::all_gather(const value& what, bool gradients, const subgroup& among) {
  if (services_) return services_->strategy_in_use().all_gather(what, gradients, among);
  return stack_each(what, [](const at::Tensor& t) { return t.unsqueeze(0); });
}

at::Tensor module::all_gather(const at::Tensor& what, bool gradients, const subgroup& among) {
  return unboxed(all_gather(boxed(what), gradients, among));
}

bool module::reduce_boolean_decision(bool yes, decision by, const subgroup& among) {
  return services_ ? services_->strategy_in_use().reduce_boolean_decision(yes, by, among) : yes;
}

void module::barrier(std::string_view label, std::chrono::nanoseconds deadline) {
  if (services_) services_->strategy_in_use().barrier(label, deadline);
}

}  // namespace troupe
