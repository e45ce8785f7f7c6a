// What users write: a module with its steps, its optimizers and the hooks it cares about.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "troupe/batch.hpp"
#include "troupe/detail/metric_accumulator.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/optimizers.hpp"
#include "troupe/recipe.hpp"
#include "troupe/strategy.hpp"

namespace troupe {

/// What on_train_batch_start says about the batch.
enum class batch_verdict : std::uint8_t {
  undecided,   ///< no opinion, no collective
  proceed,     ///< takes part in the agreement: the batch runs unless another rank skips
  skip_epoch,  ///< no more batches in this epoch, on any rank (Lightning's -1)
};

/// What a running learner offers to its module (the module's own members pass through to it).
class module_services {
public:
  virtual ~module_services() = default;
  virtual strategy& how() = 0;
  virtual const position& at() const = 0;
  virtual const metrics& logged() const = 0;
  virtual void log(std::string_view name, double sum, double count, const log_options& how) = 0;
  virtual void queue(value what) = 0;
  virtual void stop() = 0;
  virtual std::int64_t samples() const = 0;
};

/// A torch module that knows how to be trained. One per rank, made, called and destroyed in the
/// rank's lane. Steps and hooks are called in the order that actors/fit_machine.hpp fixes; numbers
/// count from 0. What a member throws is the rank's failure. Draws of LibTorch's default generator
/// are the rank's own and reset before each step: equal runs draw equal numbers.
struct module : torch::nn::Module {
  using clipping = hooks::clip_gradients::algorithm;

  // Steps. A rank without samples in a batch runs its start and end hooks but no step: a collective
  // in a step is a mismatch where a batch is too short for all ranks; the hooks are the place for
  // it.
  /// A loss, a map with `loss`, or nothing (on one rank only: then the step is left out).
  virtual step_output training_step(const batch& b, std::int64_t index);
  virtual step_output validation_step(const batch& b, std::int64_t index);
  virtual step_output test_step(const batch& b, std::int64_t index);
  virtual value predict_step(const batch& b, std::int64_t index);
  /// May replace the step's output.
  virtual step_output training_step_end(step_output output) { return output; }
  virtual step_output validation_step_end(step_output output) { return output; }
  virtual step_output test_step_end(step_output output) { return output; }

  // Setting up and taking down.
  virtual optimizers configure_optimizers();
  /// Layers that are built late, inside the strategy's model_sharded_context.
  virtual void configure_model() {}
  /// On one rank of each host.
  virtual void prepare_data() {}
  virtual void setup(stage purpose) { (void)purpose; }
  virtual void teardown(stage purpose) { (void)purpose; }
  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_exception(std::string_view type, std::string_view what) {
    (void)type, (void)what;
  }

  // Batches, all stages. Keep the batch's type.
  virtual value on_before_batch_transfer(value b, std::int32_t dataloader);
  virtual value on_after_batch_transfer(value b, std::int32_t dataloader);

  // Training.
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start(std::int64_t epoch) { (void)epoch; }
  virtual void on_train_epoch_end(std::int64_t epoch) { (void)epoch; }
  /// An override answers `undecided` on every rank or on none.
  virtual batch_verdict on_train_batch_start(const batch& b, std::int64_t index);
  virtual void on_train_batch_end(const step_output& output, const batch& b, std::int64_t index);
  virtual void on_before_zero_grad(torch::optim::Optimizer& optimizer) { (void)optimizer; }
  /// Whatever an override does, the runtime zeroes behind it.
  virtual void optimizer_zero_grad(std::int64_t epoch, std::int64_t index,
                                   torch::optim::Optimizer& optimizer);
  virtual void on_before_backward(const at::Tensor& loss) { (void)loss; }
  /// `loss` is weighted by this rank's share of the step's samples. Runs the graph once: gradients
  /// travel while it runs (data_parallel_options::overlap switches that off).
  virtual void backward(const at::Tensor& loss, const value& arguments);
  /// Gradients are reduced.
  virtual void on_after_backward() {}
  virtual void on_before_optimizer_step(torch::optim::Optimizer& optimizer) { (void)optimizer; }
  virtual void configure_gradient_clipping(torch::optim::Optimizer& optimizer, double limit,
                                           clipping how);
  /// An override calls `closure` (or the base) exactly as often on every rank.
  virtual void optimizer_step(std::int64_t epoch, std::int64_t index,
                              torch::optim::Optimizer& optimizer, const step_closure& closure);
  virtual void lr_scheduler_step(scheduler& which, std::optional<double> metric);
  /// False: nothing of the module's reads or writes `.grad` between backward and the end of its
  /// optimizer_step, nor replaces what clips or steps. Then several ranks of a process may sum,
  /// clip and update in one pass (gradient_options::fused_step), and `.grad` is never the sum.
  virtual bool reads_gradients() const { return true; }

  // Evaluation. `on_validation_*` run in the sanity check too.
  virtual void on_sanity_check_start() {}
  virtual void on_sanity_check_end() {}
  virtual void on_validation_model_zero_grad();
  /// By default eval() and, behind the evaluation, each submodule's mode as it was.
  virtual void on_validation_model_eval();
  virtual void on_validation_model_train();
  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_validation_batch_start(const batch& b, std::int64_t index,
                                         std::int32_t dataloader);
  virtual void on_validation_batch_end(const step_output& output, const batch& b,
                                       std::int64_t index, std::int32_t dataloader);
  virtual void on_test_model_eval();
  virtual void on_test_model_train();
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_test_batch_start(const batch& b, std::int64_t index, std::int32_t dataloader);
  virtual void on_test_batch_end(const step_output& output, const batch& b, std::int64_t index,
                                 std::int32_t dataloader);
  virtual void on_predict_model_eval();
  virtual void on_predict_model_train();
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
  virtual void on_predict_batch_start(const batch& b, std::int64_t index, std::int32_t dataloader);
  virtual void on_predict_batch_end(const value& output, const batch& b, std::int64_t index,
                                    std::int32_t dataloader);

  // State: JSON text of the module's own, saved with a checkpoint (rank 0's) and given back.
  virtual std::string on_save_checkpoint() { return {}; }
  virtual void on_load_checkpoint(const std::string& json) { (void)json; }

  // For use inside steps and hooks. Outside of a run a module is rank 0 of 1, and what it logs,
  // queues or stops goes nowhere.
  /// Reduced over ranks by true counts, without a collective of its own: per-step values when
  /// log_every_n_steps come round and at an epoch's end, per-epoch values at its end. With both,
  /// the step's is called `name_step`, the epoch's `name` and `name_epoch`. Ranks that log at all
  /// log the same names.
  void log(std::string_view name, double number, const log_options& how = {});
  void log(std::string_view name, const at::Tensor& number, const log_options& how = {});
  /// The mean of `count` numbers that sum up to `sum`: exact where counts differ.
  void log_ratio(std::string_view name, double sum, double count, const log_options& how = {});
  /// Last reduced values.
  const metrics& logged() const;
  /// For the caller, first in first out; rank 0's reach it. Copies deeply.
  void add_to_queue(const value& what);
  /// Asks for an end of the run at a step boundary. One rank is enough; all learn of it with the
  /// gradients of the step in flight, or at the end of the epoch or validation.
  void stop();
  /// Where the run stands: epoch, step, batch, dataloader, optimizer.
  const position& at() const;

  /// The strategy of the run; null outside of one.
  strategy* strategy_in_use() const;
  std::int32_t rank() const;
  std::int32_t world() const;
  /// See strategy.
  value reduce(const value& what, std::string_view operation = "mean", const subgroup& among = {});
  at::Tensor reduce(const at::Tensor& what, std::string_view operation = "mean",
                    const subgroup& among = {});
  value broadcast(const value& what, std::int32_t source = 0, const subgroup& among = {});
  value all_gather(const value& what, bool gradients = false, const subgroup& among = {});
  at::Tensor all_gather(const at::Tensor& what, bool gradients = false, const subgroup& among = {});
  bool reduce_boolean_decision(bool yes, decision by = decision::all, const subgroup& among = {});
  void barrier(std::string_view label,
               std::chrono::nanoseconds deadline = std::chrono::nanoseconds{0});

  /// The learner's; null takes them away.
  void attach(module_services* services) { services_ = services; }

private:
  void enter_evaluation();
  void leave_evaluation();

  module_services* services_ = nullptr;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  bool self_training_ = true;
};

}  // namespace troupe
