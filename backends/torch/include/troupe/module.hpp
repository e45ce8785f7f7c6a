// A module with its steps, its optimizers and its hooks: what a user writes.
#pragma once

#include "troupe/call.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/metric_accumulator.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/hyper_parameters.hpp"
#include "troupe/optimizers.hpp"
#include "troupe/strategy.hpp"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe {

/// The result of on_train_batch_start.
enum class batch_verdict : std::uint8_t {
  undecided,   ///< the batch runs; no collective
  proceed,     ///< the ranks agree: the batch runs unless another rank skips
  skip_epoch,  ///< no more batches in this epoch, on any rank (Lightning's -1)
};

/// A number that a module logs.
using loggable = std::variant<double, at::Tensor>;

/// How long a fit is: module::batches_per_epoch and module::estimated_steps.
struct training_length {
  std::int64_t batches = 0;           ///< micro-batches of an epoch
  std::optional<std::int64_t> steps;  ///< of the whole fit; nullopt: no limit
};

/// What a running learner offers to its module, which passes calls of its own members on to it.
class module_services {
public:
  virtual ~module_services() = default;
  /// The strategy of the run.
  virtual strategy& strategy_in_use() = 0;
  /// The position of the hook in progress.
  virtual const position& at() const = 0;
  /// The last reduced value of each name.
  virtual const metrics& logged() const = 0;
  /// Adds `sum` of `count` numbers to the value `name` of this rank. Calls no collective.
  virtual void log(std::string_view name, double sum, double count, const log_options& how) = 0;
  /// Adds to job_outcome::queue without a copy: the tensors of `what` stay the caller's.
  virtual void queue(value what) = 0;
  /// module::stop.
  virtual void stop() = 0;
  /// Samples of this rank in the micro-batch in progress, which may be 0; outside of one 1.
  virtual std::int64_t samples() const = 0;
  /// module::is_last_batch.
  virtual bool is_last_batch() const = 0;
  /// module::hiddens.
  virtual const value& hiddens() const = 0;
  /// module::why_ended.
  virtual stop_reason why_ended() const = 0;
  /// module::save_checkpoint.
  virtual void save(const std::string& path, const value& storage_options) = 0;
  /// module::optimizers_in_use.
  virtual optimizers* configured() = 0;
  /// Whether a callback of the run reads or writes `.grad`.
  virtual bool callbacks_read_gradients() const = 0;
  /// module::manual_backward.
  virtual void backward_manually(const at::Tensor& loss) = 0;
  /// manual_optimizer::step. `closure` may be empty.
  virtual void step_manually(std::int32_t optimizer, const step_closure& closure) = 0;
};

/// An optimizer of a module that trains itself (module::automatic_optimization), in its
/// training_step. A handle: valid as long as the run.
class manual_optimizer {
public:
  /// Drops the gradients of its parameters.
  void zero_grad() const;
  /// Updates its parameters, in the precision of the run. Before that on_before_optimizer_step is
  /// called on callbacks and module. Every rank calls it equally often.
  void step() const;
  /// `closure` computes the loss anew: it zeroes gradients, calls manual_backward and returns the
  /// loss.
  void step(const step_closure& closure) const;
  /// LibTorch's own, for its rates and its state. Its step() knows nothing of the precision.
  torch::optim::Optimizer& raw() const { return *optimizer_; }

private:
  friend struct module;
  manual_optimizer(module_services& services, torch::optim::Optimizer& optimizer,
                   std::int32_t index)
      : services_(&services), optimizer_(&optimizer), index_(index) {}

  module_services* services_;
  torch::optim::Optimizer* optimizer_;
  std::int32_t index_;
};

/// A torch module with training steps.
/// - One per rank: made, called and destroyed by one thread, in the rank's lane.
/// - Steps and hooks are called in Lightning's order (actors/fit_machine.hpp has the list); all
///   numbers count from 0.
/// - What a member throws is the rank's failure.
/// - LibTorch's default generator is the rank's own and is seeded before each step: equal runs draw
///   equal numbers.
struct module : torch::nn::Module {
  /// Whether the norm of all gradients is clipped, or each value.
  using clipping = hooks::clip_gradients::algorithm;

  // Steps. A rank without samples in a batch runs the batch's start and end hooks but no step. So a
  // collective in a step is a mismatch where a batch is too short for all ranks; call it in a hook.
  /// Returns a loss, a map with `loss`, or nothing (with one rank only: the step is left out).
  virtual step_output training_step(const batch& b, std::int64_t index);
  /// Without gradients, in evaluation mode; the sanity check calls validation_step, too. The result
  /// may be empty, as it is by default.
  /// @{
  virtual step_output validation_step(const batch& b, std::int64_t index);
  virtual step_output test_step(const batch& b, std::int64_t index);
  /// @}
  /// Returns the predictions for a batch; job_outcome::result has them by loader, batch and rank.
  /// By default it throws a user_error: a module without it cannot predict.
  virtual value predict_step(const batch& b, std::int64_t index);
  /// May replace the step's output.
  /// @{
  virtual step_output training_step_end(step_output output) { return output; }
  virtual step_output validation_step_end(step_output output) { return output; }
  virtual step_output test_step_end(step_output output) { return output; }
  /// @}

  // Set-up and teardown.
  /// In a fit, when the parameters are on their device. Returns at least one optimizer; by default
  /// it throws a user_error. Checks before the ranks start may call it on another module, on the
  /// host.
  virtual optimizers configure_optimizers();
  /// Registers layers that are built late, inside the strategy's model_sharded_context.
  virtual void configure_model() {}
  /// Where the data's is called. Checks before the ranks start may call this and the next on
  /// another module, in the order of a rank, and prepare_data of the data as well.
  virtual void prepare_data() {}
  /// On every rank, after the data's and before configure_model.
  virtual void setup(stage purpose) { (void)purpose; }
  /// On every rank, after the strategy's, also when the run has failed. Call no collective.
  virtual void teardown(stage purpose) { (void)purpose; }
  /// First and last of a fit, outside of its loops. Not called in validate, test and predict.
  /// @{
  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  /// @}
  /// See strategy::on_exception.
  virtual void on_exception(const std::exception_ptr& error, std::string_view type,
                            std::string_view what);

  // Batches, in all stages. Overrides keep the batch's type.
  /// Around the move to the device; the data module's hooks are called between these two. Not
  /// called on a rank without samples.
  /// @{
  virtual value on_before_batch_transfer(value b, std::int32_t dataloader);
  virtual value on_after_batch_transfer(value b, std::int32_t dataloader);
  /// @}

  // Training.
  /// Around all epochs; a resumed fit calls on_train_start again. Neither is called where there is
  /// nothing to train.
  /// @{
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  /// @}
  /// Before the first batch of an epoch; not again in an epoch that is resumed.
  virtual void on_train_epoch_start(std::int64_t epoch) { (void)epoch; }
  /// Before the epoch's values are reduced, so it may log more of them. Not called when the run
  /// ends inside the epoch.
  virtual void on_train_epoch_end(std::int64_t epoch) { (void)epoch; }
  /// An override returns `undecided` on every rank or on none.
  virtual batch_verdict on_train_batch_start(const batch& b, std::int64_t index);
  /// After the micro-batch's steps and their update; `output` is what the step returned.
  virtual void on_train_batch_end(const step_output& output, const batch& b, std::int64_t index);
  /// In the first micro-batch of an optimizer step, once per optimizer, before its gradients are
  /// dropped.
  virtual void on_before_zero_grad(torch::optim::Optimizer& optimizer) { (void)optimizer; }
  /// Whatever an override does, the runtime zeroes gradients after it.
  virtual void optimizer_zero_grad(std::int64_t epoch, std::int64_t index,
                                   torch::optim::Optimizer& optimizer);
  /// `loss` is scaled by the precision, not yet weighted. Not called on a rank without samples.
  virtual void on_before_backward(const at::Tensor& loss) { (void)loss; }
  /// `loss` is weighted by this rank's share of the step's samples. Runs the graph once: gradients
  /// are sent while it runs (gradient_options::overlap switches that off).
  /// `arguments`: step_output::backward_arguments.
  virtual void backward(const at::Tensor& loss, const value& arguments);
  /// Gradients are summed over ranks.
  virtual void on_after_backward() {}
  /// Gradients are summed over ranks and unscaled, not yet clipped.
  virtual void on_before_optimizer_step(torch::optim::Optimizer& optimizer) { (void)optimizer; }
  /// Called if trainer_options::gradient_clip_val, which is `limit`, is above 0. By default
  /// strategy::clip_gradients.
  virtual void configure_gradient_clipping(torch::optim::Optimizer& optimizer, double limit,
                                           clipping how);
  /// An override calls `closure` (or the base) exactly as often on every rank. Without the base no
  /// step is made; one of the optimizer's own is not skipped at the infinite gradients of 16-mixed.
  virtual void optimizer_step(std::int64_t epoch, std::int64_t index,
                              torch::optim::Optimizer& optimizer, const step_closure& closure);
  /// Once per scheduler that is due; by default which.step(metric). `metric`: the last value of the
  /// monitor of a plateau scheduler, if it was logged.
  virtual void lr_scheduler_step(scheduler& which, std::optional<double> metric);
  /// False: no member of the module reads or writes `.grad` between backward and the end of its
  /// optimizer_step, and none replaces clipping or the step. Then several ranks of a process may
  /// sum, clip and update in one pass (gradient_options::fused_step), and `.grad` is never the sum.
  virtual bool reads_gradients() const { return true; }
  /// The module or a callback of the run reads them.
  bool gradients_are_read() const;

  // Manual optimization (docs/gradients.md): training_step runs backward and the optimizers itself.
  /// False: a batch has no hooks but on_train_batch_start, training_step, training_step_end and
  /// on_train_batch_end, and those that the two members below call. It counts as one step,
  /// whatever training_step does, and may return nothing. Schedulers are left to training_step
  /// (optimizers_in_use). Refused with accumulate_grad_batches, gradient_clip_val,
  /// truncated_bptt_steps and a communication hook. In jobs that can restart each step costs a copy
  /// of the weights, gradients and optimizers. Read once, after configure_optimizers.
  virtual bool automatic_optimization() const { return true; }
  /// In training_step: adds the gradients of `loss`, summed over ranks by their samples, to those
  /// that there are. Collective: every rank calls it equally often. So each rank needs samples in
  /// each batch (drop_last). Between its two parts on_before_backward, backward and
  /// on_after_backward are called.
  /// A plain loss.backward() sums nothing. With several ranks of the strategy data_parallel an
  /// optimizer's step, and clip_gradients, throw a user_error where a gradient is as such a
  /// backward left it. One that the module has changed or assigned since then is its own sum.
  void manual_backward(const at::Tensor& loss);
  /// An optimizer of configure_optimizers by its number, in training_step.
  manual_optimizer optimizer(std::int32_t index = 0) const;

  // Truncated back-propagation through time (docs/gradients.md): each batch is trained in parts
  // that follow each other in time, with an optimizer step for each part. training_step then
  // returns a map with `loss` and `hiddens`: any value, whose tensors are detached for the next
  // part.
  /// The length of a part in time. 0: trainer_options::truncated_bptt_steps. The module's own comes
  /// first. Read once, after configure_optimizers.
  virtual std::int64_t truncated_bptt_steps() const { return 0; }
  /// The parts of a batch that has samples, at least one and as many on every rank. By default each
  /// tensor of the batch is cut along dimension 1, and each sequence of it in its elements, along
  /// their first dimension. All must be equally long. Anything else is in each part as it is.
  virtual std::vector<value> tbptt_split_batch(const value& whole, std::int64_t steps);
  /// What training_step returned as `hiddens` for the part before; empty in the first part of a
  /// batch. With several optimizers: what the step of the last one returned.
  const value& hiddens() const;

  // Evaluation. `on_validation_*` run in the sanity check too.
  /// Around the sanity check's validation. Not called in a resumed fit.
  /// @{
  virtual void on_sanity_check_start() {}
  virtual void on_sanity_check_end() {}
  /// @}
  /// Before a validation within a fit, unless a window of accumulated gradients is open. By default
  /// drops all gradients. Not called in manual optimization.
  virtual void on_validation_model_zero_grad();
  /// By default eval().
  virtual void on_validation_model_eval();
  /// After the evaluation. By default restores each submodule's mode of before
  /// on_validation_model_eval.
  virtual void on_validation_model_train();
  /// Around all loaders of an evaluation, without gradients. In on_validation_epoch_end its values
  /// are not reduced yet, so it may log more of them; in on_validation_end logged() has them.
  /// @{
  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  /// @}
  /// `index` counts the batches of loader `dataloader`. On a rank without samples the batch and the
  /// output are empty.
  /// @{
  virtual void on_validation_batch_start(const batch& b, std::int64_t index,
                                         std::int32_t dataloader);
  virtual void on_validation_batch_end(const step_output& output, const batch& b,
                                       std::int64_t index, std::int32_t dataloader);
  /// @}
  /// As those of validation.
  /// @{
  virtual void on_test_model_eval();
  virtual void on_test_model_train();
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_test_batch_start(const batch& b, std::int64_t index, std::int32_t dataloader);
  virtual void on_test_batch_end(const step_output& output, const batch& b, std::int64_t index,
                                 std::int32_t dataloader);
  /// @}
  /// As those of validation; `output` is what predict_step returned.
  /// @{
  virtual void on_predict_model_eval();
  virtual void on_predict_model_train();
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
  virtual void on_predict_batch_start(const batch& b, std::int64_t index, std::int32_t dataloader);
  virtual void on_predict_batch_end(const value& output, const batch& b, std::int64_t index,
                                    std::int32_t dataloader);
  /// @}

  // A module may keep a JSON text in checkpoints. Rank 0's text is saved; every rank gets it when
  // the checkpoint is loaded. In a job that can restart, a rank that takes a dead rank's place gets
  // the text of a living one. on_save_checkpoint runs on that rank alone then, and must not call a
  // collective.
  /// Before the weights are copied, after the callbacks'. By default empty.
  virtual std::string on_save_checkpoint() { return {}; }
  /// `json` is what a rank's on_save_checkpoint returned; empty if nothing. Jobs that evaluate a
  /// checkpoint call it, and jobs that begin with a fit's weights (job_context::initial, and a
  /// trainer's evaluation after its fit).
  virtual void on_load_checkpoint(const std::string& json) { (void)json; }

  // For use inside steps and hooks. Outside of a run a module is rank 0 of 1; what it logs and
  // queues is dropped, and stop() has no effect.
  /// Reduced over ranks by true counts, without a collective per call: per-step values every
  /// log_every_n_steps and at an epoch's end, per-epoch values at the epoch's end. With both, the
  /// step's value is called `name_step`, the epoch's `name` and `name_epoch`. Ranks that log at all
  /// log the same names. Throws user_error (job_failed) in a hook that comes after the reduction,
  /// such as on_validation_end or on_train_end, or before the first step, such as setup.
  void log(std::string_view name, double number, const log_options& how = {});
  /// `number` has one element, which is read at once: on a device this waits for it. Else a
  /// user_error.
  void log(std::string_view name, const at::Tensor& number, const log_options& how = {});
  /// The mean of `count` numbers whose sum is `sum`: exact where ranks have different counts.
  void log_ratio(std::string_view name, double sum, double count, const log_options& how = {});
  /// log(name, number, how) for each of them.
  void log_dict(std::initializer_list<std::pair<std::string_view, loggable>> numbers,
                const log_options& how = {});
  /// Last reduced values.
  const metrics& logged() const;
  /// Keeps the fields of `all` (troupe/hyper_parameters.hpp): they are saved with each checkpoint,
  /// and load_from_checkpoint makes a module from them. Call it in the constructor.
  template <class Struct>
  void save_hyperparameters(const Struct& all) {
    hyper_parameters_ = hyper_parameters_of(all);
  }
  /// What save_hyperparameters kept; empty before it.
  const value_map& hyper_parameters() const { return hyper_parameters_; }
  /// For job_outcome::queue, first in first out; only the values of rank 0. Makes a deep copy.
  void add_to_queue(const value& what);
  /// Writes a checkpoint of the fit to the folder `path` now, beside those of the policy, in the
  /// job's format. In a hook of a fit from on_train_start on, between two steps (in
  /// on_train_batch_end, for example), on all ranks; they return when it is durable. `--resume` may
  /// go on from it: it then repeats what follows the last step, and early stopping counts anew.
  /// Replaces a checkpoint of `path`. A user_error (checkpoint) if anything else is there: a file,
  /// a link, or a folder that is neither empty nor a checkpoint.
  /// `storage_options`: strategy::save_checkpoint.
  void save_checkpoint(const std::string& path, const value& storage_options = {});
  /// Asks for an end of the run at a step boundary. One rank is enough; the others learn of it with
  /// the gradients of the step in flight, or at the end of the epoch or validation. No effect in
  /// validate, test and predict, as in Lightning: job_handle::stop ends those.
  void stop();
  /// From on_train_end on, in on_fit_end and teardown too: why the fit ended early, as
  /// job_outcome::why says it; the same on all ranks. `none` before that, where the fit ran to its
  /// limits, and where it failed.
  stop_reason why_ended() const;
  /// Where the run stands: epoch, step, batch, dataloader, optimizer.
  const position& at() const;

  /// How long the fit is: the same on all ranks, and after a resume with the same options. From
  /// setup on, so in configure_optimizers, too: the data's train() is called then, if it was not
  /// before. In another job, and outside of one, a user_error (bad_usage).
  /// @{
  /// Micro-batches of an epoch, within limit_train_batches (Lightning's num_training_batches).
  std::int64_t batches_per_epoch() const;
  /// Optimizer steps from the first epoch to the limits max_epochs and max_steps, with the
  /// micro-batches that a step has in each epoch (Lightning's estimated_stepping_batches). It does
  /// not know what ends a fit or an epoch early: max_time, stops, skip_epoch. nullopt: no limit.
  std::optional<std::int64_t> estimated_steps() const;
  /// @}
  /// Whether the micro-batch in progress is the last one of its epoch (Lightning's
  /// trainer.is_last_batch). False outside of micro-batches of training.
  bool is_last_batch() const;
  /// The optimizers of a fit, from configure_optimizers on; else null.
  optimizers* optimizers_in_use() const;
  /// The strategy of the run; null outside of one.
  strategy* strategy_in_use() const;
  /// This rank and the number of ranks; outside of a run 0 and 1.
  /// @{
  std::int32_t rank() const;
  std::int32_t world() const;
  /// @}
  /// See strategy.
  /// @{
  value reduce(const value& what, std::string_view operation = "mean", const subgroup& among = {});
  at::Tensor reduce(const at::Tensor& what, std::string_view operation = "mean",
                    const subgroup& among = {});
  value broadcast(const value& what, std::int32_t source = 0, const subgroup& among = {});
  value all_gather(const value& what, bool gradients = false, const subgroup& among = {});
  at::Tensor all_gather(const at::Tensor& what, bool gradients = false, const subgroup& among = {});
  bool reduce_boolean_decision(bool yes, decision by = decision::all, const subgroup& among = {});
  void barrier(std::string_view label,
               std::chrono::nanoseconds deadline = std::chrono::nanoseconds{0});
  /// @}

  /// strategy::register_comm_hook. Outside of a run the hook is ignored.
  template <class State, class Hook>
  void register_comm_hook(State state, Hook hook) {
    if (auto* how = strategy_in_use()) how->register_comm_hook(std::move(state), std::move(hook));
  }

  /// For the learner, and for checks before the ranks start, which have no services. Null and an
  /// empty function detach it.
  void attach(module_services* services, std::function<training_length()> length) {
    services_ = services;
    length_ = std::move(length);
  }
  /// For the learner, before an evaluation: records each submodule's mode.
  void remember_modes();

private:
  void restore_modes();

  module_services* services_ = nullptr;
  std::function<training_length()> length_;
  value_map hyper_parameters_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  bool self_training_ = true;
};

/// Each rank gets a tensor of its own.
template <>
struct value_form<at::Tensor> {
  /// Shares memory with `x`; without its gradient graph.
  static value to(const at::Tensor& x) { return boxed(x.detach()); }
  /// A copy. Throws std::invalid_argument for a value that is no tensor.
  static at::Tensor from(const value& v) { return unboxed(v).clone(); }
  /// &torch_tensor_bytes(); never null.
  static const tensor_bytes* tensors() { return &torch_tensor_bytes(); }
};

}  // namespace troupe

namespace torch::nn {
class Module;
}

namespace troupe {

// A table of a module's layers and of the numbers that they learn.

/// One line of the table.
struct layer_summary {
  std::string name;  ///< dotted, as in its parameters' names
  std::string type;  ///< `Linear`, of torch::nn::LinearImpl
  /// Numbers in its parameters, those of its sub-modules included.
  std::int64_t parameters = 0;
  bool training = true;  ///< not in evaluation mode
  friend bool operator==(const layer_summary&, const layer_summary&) = default;
};

/// The table and its sums.
struct module_summary {
  std::vector<layer_summary> layers;  ///< in the order of registration
  std::int64_t trainable = 0;         ///< numbers in parameters that need gradients
  std::int64_t fixed = 0;             ///< in the others
  std::int64_t bytes = 0;             ///< of both
};

/// Layers down to `depth` levels below `of`; -1: all, 0: none. A parameter with two names counts
/// once in each layer that has it, and once in the sums.
module_summary summarize(const torch::nn::Module& of, int depth = 1);

/// As Lightning's ModelSummary prints it: a line per layer, then the sums.
std::string to_string(const module_summary& all);

}  // namespace troupe
