// Ready callbacks. Each is made of its options and given to a job in torch_plugins::callbacks:
//
//   troupe::torch_plugins with{.callbacks = {troupe::learning_rate_monitor{},
//                                            troupe::timer{{.max_time = 2h}}}};
//   auto outcome = trainer.fit<classifier>(with, data);
//
// Early stopping, checkpoints and the schedule of accumulation: troupe/callback.hpp, which
// this header includes.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/callback.hpp"
#include "troupe/options.hpp"

namespace troupe {

/// Where time is read, for tests. Empty: the clock of the session's ports.
using clock_function = std::function<std::chrono::nanoseconds()>;

// --- LibTorch's profiler -------------------------------------------------------------------------

/// Options of a torch_profiler.
struct torch_profiler_options {
  /// The file, which is replaced.
  std::string path;
  /// Batches before the first one that is recorded, and how many are recorded; at least 1.
  /// @{
  std::int64_t wait = 1;
  std::int64_t active = 3;
  /// @}
};

/// Records the operators of rank 0's lane in a few batches of training, with the hooks that they
/// belong to, and writes them as LibTorch's profiler does: a trace for Perfetto and Chrome. A
/// process can have one such recording at a time.
class torch_profiler : public callback {
public:
  /// Throws user_error (bad_configuration) for no path and for impossible numbers.
  explicit torch_profiler(torch_profiler_options how);
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  void on_train_batch_end(module& m, const step_output& output, const batch& b,
                          std::int64_t index) override;
  void on_train_end(module& m) override;
  void on_exception(module& m, std::string_view type, std::string_view what) override;
  bool reads_gradients() const override { return false; }

private:
  void finish();

  torch_profiler_options how_;
  std::int64_t seen_ = 0;  // batches
  bool records_ = false;
};

// --- functions -----------------------------------------------------------------------------------

/// The hooks of a lambda_callback by name; empty ones do nothing. Ranks get copies.
struct callback_functions {
  /// The types of the functions. `loader` and `dataloader` hooks are those of evaluations.
  /// @{
  using plain = std::function<void(module& m)>;
  using of_epoch = std::function<void(module& m, std::int64_t epoch)>;
  using of_optimizer = std::function<void(module& m, torch::optim::Optimizer& optimizer)>;
  using at_batch = std::function<void(module& m, const batch& b, std::int64_t index)>;
  using at_loader =
      std::function<void(module& m, const batch& b, std::int64_t index, std::int32_t dataloader)>;
  template <class Output>
  using after_loader = std::function<void(module& m, const Output& output, const batch& b,
                                          std::int64_t index, std::int32_t dataloader)>;
  using after_batch =
      std::function<void(module& m, const step_output& output, const batch& b, std::int64_t index)>;
  /// @}

  /// Called where the hook of the same name is called (troupe/callback.hpp).
  /// @{
  std::function<void(module& m, stage purpose)> setup = {};
  std::function<void(module& m, stage purpose)> teardown = {};
  plain on_fit_start = {};
  plain on_fit_end = {};
  std::function<void(module& m, std::string_view type, std::string_view what)> on_exception = {};
  plain on_train_start = {};
  plain on_train_end = {};
  of_epoch on_train_epoch_start = {};
  of_epoch on_train_epoch_end = {};
  at_batch on_train_batch_start = {};
  after_batch on_train_batch_end = {};
  of_optimizer on_before_zero_grad = {};
  std::function<void(module& m, const at::Tensor& loss)> on_before_backward = {};
  plain on_after_backward = {};
  of_optimizer on_before_optimizer_step = {};
  plain on_sanity_check_start = {};
  plain on_sanity_check_end = {};
  plain on_validation_start = {};
  plain on_validation_end = {};
  plain on_validation_epoch_start = {};
  plain on_validation_epoch_end = {};
  at_loader on_validation_batch_start = {};
  after_loader<step_output> on_validation_batch_end = {};
  plain on_test_start = {};
  plain on_test_end = {};
  plain on_test_epoch_start = {};
  plain on_test_epoch_end = {};
  at_loader on_test_batch_start = {};
  after_loader<step_output> on_test_batch_end = {};
  plain on_predict_start = {};
  plain on_predict_end = {};
  plain on_predict_epoch_start = {};
  plain on_predict_epoch_end = {};
  at_loader on_predict_batch_start = {};
  after_loader<value> on_predict_batch_end = {};
  plain on_save_checkpoint = {};
  plain on_checkpoint_taken = {};
  plain on_load_checkpoint = {};
  /// @}
};

/// `lambda_callback{{.on_train_epoch_end = [](module& m, std::int64_t epoch) { ... }}}`. A function
/// for one of the hooks between backward and the optimizer's step counts as one that reads
/// gradients.
class lambda_callback : public callback {
public:
  /// Every rank gets a copy, so the functions may run at the same time in several lanes.
  explicit lambda_callback(callback_functions functions) : f_(std::move(functions)) {}

  void setup(module& m, stage purpose) override;
  void teardown(module& m, stage purpose) override;
  void on_fit_start(module& m) override;
  void on_fit_end(module& m) override;
  void on_exception(module& m, std::string_view type, std::string_view what) override;
  void on_train_start(module& m) override;
  void on_train_end(module& m) override;
  void on_train_epoch_start(module& m, std::int64_t epoch) override;
  void on_train_epoch_end(module& m, std::int64_t epoch) override;
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  void on_train_batch_end(module& m, const step_output& output, const batch& b,
                          std::int64_t index) override;
  void on_before_zero_grad(module& m, torch::optim::Optimizer& optimizer) override;
  void on_before_backward(module& m, const at::Tensor& loss) override;
  void on_after_backward(module& m) override;
  void on_before_optimizer_step(module& m, torch::optim::Optimizer& optimizer) override;
  void on_sanity_check_start(module& m) override;
  void on_sanity_check_end(module& m) override;
  void on_validation_start(module& m) override;
  void on_validation_end(module& m) override;
  void on_validation_epoch_start(module& m) override;
  void on_validation_epoch_end(module& m) override;
  void on_validation_batch_start(module& m, const batch& b, std::int64_t index,
                                 std::int32_t dataloader) override;
  void on_validation_batch_end(module& m, const step_output& output, const batch& b,
                               std::int64_t index, std::int32_t dataloader) override;
  void on_test_start(module& m) override;
  void on_test_end(module& m) override;
  void on_test_epoch_start(module& m) override;
  void on_test_epoch_end(module& m) override;
  void on_test_batch_start(module& m, const batch& b, std::int64_t index,
                           std::int32_t dataloader) override;
  void on_test_batch_end(module& m, const step_output& output, const batch& b, std::int64_t index,
                         std::int32_t dataloader) override;
  void on_predict_start(module& m) override;
  void on_predict_end(module& m) override;
  void on_predict_epoch_start(module& m) override;
  void on_predict_epoch_end(module& m) override;
  void on_predict_batch_start(module& m, const batch& b, std::int64_t index,
                              std::int32_t dataloader) override;
  void on_predict_batch_end(module& m, const value& output, const batch& b, std::int64_t index,
                            std::int32_t dataloader) override;
  void on_save_checkpoint(module& m) override;
  void on_checkpoint_taken(module& m) override;
  void on_load_checkpoint(module& m) override;
  bool reads_gradients() const override;

private:
  callback_functions f_;
};

// --- what is logged ------------------------------------------------------------------------------

/// Options of a learning_rate_monitor.
struct learning_rate_monitor_options {
  /// When each batch begins, or when each epoch begins.
  enum class interval : std::uint8_t { step, epoch };
  /// How often rates are logged.
  interval every = interval::step;
  bool log_momentum = false;      ///< `-momentum`; of Adam and its kin the first beta
  bool log_weight_decay = false;  ///< `-weight_decay`
};

/// Logs each optimizer's rates under Lightning's names: `lr-SGD`, the second SGD `lr-SGD-1`, with
/// several groups `lr-SGD/pg1`, `lr-SGD/pg2`. By step: as it is when the batch begins.
class learning_rate_monitor : public callback {
public:
  /// By default rates alone, in each step.
  explicit learning_rate_monitor(learning_rate_monitor_options how = {}) : how_(how) {}
  void on_train_epoch_start(module& m, std::int64_t epoch) override;
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  bool reads_gradients() const override { return false; }

private:
  void log_rates(module& m) const;
  learning_rate_monitor_options how_;
};

/// Options of gradient_norms.
struct gradient_norms_options {
  double norm = 2;   ///< of which kind; infinity: the largest absolute value
  bool each = true;  ///< of each parameter too, not only of all of them
};

/// Logs `grad_2.0_norm_total` and, for each parameter, `grad_2.0_norm/NAME`: of the gradients
/// summed over ranks, unscaled, before they are clipped. Computed in the steps whose values are
/// reported (trainer_options::log_every_n_steps). With several optimizers only of those that step.
class gradient_norms : public callback {
public:
  /// By default the 2-norm, of all parameters together and of each.
  explicit gradient_norms(gradient_norms_options how = {}) : how_(how) {}
  void on_before_optimizer_step(module& m, torch::optim::Optimizer& optimizer) override;

private:
  gradient_norms_options how_;
};

/// Options of a throughput_monitor.
struct throughput_monitor_options {
  std::int64_t window = 100;  ///< steps over which rates are measured
  /// Empty: see clock_function.
  clock_function now = {};
};

/// Logs `throughput/samples_per_second` (of all ranks) and `throughput/steps_per_second`, over the
/// last steps of the epoch. Validations between two steps count as time. A rank that has just
/// joined a running job counts as 0 in its first step.
class throughput_monitor : public callback {
public:
  /// By default rates over 100 steps.
  explicit throughput_monitor(throughput_monitor_options how = {}) : how_(std::move(how)) {}
  void on_train_epoch_start(module& m, std::int64_t epoch) override;
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  void on_train_batch_end(module& m, const step_output& output, const batch& b,
                          std::int64_t index) override;
  bool reads_gradients() const override { return false; }

private:
  struct mark {
    std::chrono::nanoseconds at;
    std::int64_t samples;
  };
  throughput_monitor_options how_;
  clock_function clock_;
  std::deque<mark> marks_;  // of the last `window` steps and the one before
  std::int64_t samples_ = 0;
  std::int64_t step_ = 0;  // before the batch in progress
};

/// Logs `device/process_memory_mib` (resident memory, the most of all ranks' processes) and
/// `device/process_cpu_percent` (100 per busy core since the last report) in the steps whose values
/// are reported.
class device_stats_monitor : public callback {
public:
  /// `now`: see clock_function.
  explicit device_stats_monitor(clock_function now = {}) : now_(std::move(now)) {}
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  bool reads_gradients() const override { return false; }

private:
  clock_function now_;
  std::chrono::nanoseconds at_{-1};
  std::chrono::nanoseconds used_{0};
};

/// Logs of each rank N, at the steps that report values: `rank/N/samples_per_second`, and
/// `rank/N/waiting_share`, the share of its time (0 to 1) that its lane spent in collectives. Both
/// are of the steps since the report before, or since the begin of the epoch. The values travel
/// with those of the module. Ranks after the first `ranks_max` are left out.
class rank_monitor : public callback {
public:
  /// How many ranks have figures.
  static constexpr std::int32_t ranks_max = 64;

  /// `now`: see clock_function.
  explicit rank_monitor(clock_function now = {}) : now_(std::move(now)) {}
  void on_train_epoch_start(module& m, std::int64_t epoch) override;
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  void on_train_batch_end(module& m, const step_output& output, const batch& b,
                          std::int64_t index) override;
  bool reads_gradients() const override { return false; }

private:
  void begin(const module& m);

  clock_function now_;
  clock_function clock_;
  std::chrono::nanoseconds since_{-1};  // negative: not begun
  std::chrono::nanoseconds waited_{0};  // the strategy's counter at `since_`
  std::int64_t samples_ = 0;            // of this rank, since `since_`
  std::int64_t step_ = -1;              // of the newest batch
};

// --- for TensorBoard -----------------------------------------------------------------------------

/// Options of a tensorboard_model.
struct tensorboard_model_options {
  /// Where the event file is made. No other program or logger writes there at the same time.
  std::string folder;
  /// Histograms are written at the ends of epochs whose number, from 1, is a multiple of it.
  std::int64_t every_n_epochs = 1;
};

/// Writes what TensorBoard shows of a model, on rank 0:
/// - a histogram of each parameter's finite values, before the first step, at the ends of epochs
///   and when training ends;
/// - the graph of the first batch's loss: the operators that autograd has recorded, each with the
///   shape of its result, in groups by the module whose parameters it uses. The node `data` stands
///   for the batch and all else without a gradient. Of more than 10,000 nodes the rest is left out.
/// Reads weights and the graph only. Where the disk is full, values are lost and training goes on.
class tensorboard_model : public callback {
public:
  /// Throws user_error (bad_configuration) for no folder and for impossible numbers.
  explicit tensorboard_model(tensorboard_model_options how);
  /// Makes the folder and the file; throws user_error (bad_configuration) if it cannot.
  void on_train_start(module& m) override;
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  void on_before_backward(module& m, const at::Tensor& loss) override;
  void on_train_epoch_end(module& m, std::int64_t epoch) override;
  void on_train_end(module& m) override;
  bool reads_gradients() const override { return false; }

private:
  class writer;
  void write_histograms(module& m);

  tensorboard_model_options how_;
  std::shared_ptr<writer> to_;
};

// --- what ends a run -----------------------------------------------------------------------------

/// Options of a timer.
struct timer_options {
  /// The time of training, validations included; must be set.
  std::chrono::nanoseconds max_time{0};
  /// At the end of each batch, or of each epoch.
  enum class interval : std::uint8_t { step, epoch };
  interval every = interval::step;  ///< where the time is looked at
  /// Empty: see clock_function.
  clock_function now = {};
};

/// Asks for an end of the run when training has taken `max_time`, the runs before a resume
/// included. Rank 0's clock decides, and all ranks end after the same step: by step, one step after
/// the one that passed the limit. A resumed run without time left makes one step.
class timer : public callback {
public:
  /// Throws user_error (bad_configuration) unless max_time is positive.
  explicit timer(timer_options how);
  void on_train_start(module& m) override;
  void on_train_batch_end(module& m, const step_output& output, const batch& b,
                          std::int64_t index) override;
  void on_train_epoch_end(module& m, std::int64_t epoch) override;
  callback_state save_state() const override;
  void load_state(module& m, const callback_state& from) override;
  bool reads_gradients() const override { return false; }

private:
  void look(module& m);
  std::chrono::nanoseconds elapsed() const;

  timer_options how_;
  clock_function clock_;
  std::optional<std::chrono::nanoseconds> began_;
  std::chrono::nanoseconds before_{0};
};

// --- averages of the weights ---------------------------------------------------------------------

/// Keeps an average of the parameters and of the buffers but those of measures, as PyTorch's
/// AveragedModel(use_buffers=True) does: the first update copies, each later one adds the current
/// weights by a share. Validations, checkpoints and what comes after the last step use the average;
/// training goes on with its own weights, bit by bit.
///
/// A checkpoint's model is the average; the weights in training are in the callback's state. So an
/// evaluation uses the average, and a resumed fit trains on. Before the first update there is no
/// average, and everything uses the weights.
class weight_averaging : public callback {
public:
  void on_train_start(module& m) override;
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  void on_train_batch_end(module& m, const step_output& output, const batch& b,
                          std::int64_t index) override;
  void on_train_epoch_end(module& m, std::int64_t epoch) override;
  void on_train_end(module& m) override;
  void on_validation_epoch_start(module& m) override;
  void on_validation_epoch_end(module& m) override;
  void on_save_checkpoint(module& m) override;
  void on_checkpoint_taken(module& m) override;
  callback_state save_state() const override;
  void load_state(module& m, const callback_state& from) override;
  bool reads_gradients() const override { return false; }

  /// How often the average took weights; runs before a resume count.
  std::int64_t updates() const { return updates_; }

protected:
  /// Whether the average takes the weights after this step, or after this epoch. From 0.
  virtual bool due_after_step(std::int64_t step) const { return (void)step, false; }
  virtual bool due_after_epoch(std::int64_t epoch) const { return (void)epoch, false; }
  /// The share of the current weights in the next update, when there were `updates` before.
  virtual double share(std::int64_t updates) const = 0;

private:
  void update(module& m);
  void take_epoch(module& m, std::int64_t epoch);
  void show_average(module& m);
  void show_training(module& m);
  void swap(module& m);

  /// The average; while the module shows it, the weights in training.
  std::map<std::string, at::Tensor> other_;
  bool shown_ = false;
  bool shown_to_save_ = false;
  std::int64_t updates_ = 0;
  std::int64_t step_ = 0;           // before the batch in progress
  std::int64_t taken_ = undefined;  // the last epoch whose end the average took
};

/// Options of an exponential_moving_average.
struct exponential_moving_average_options {
  /// The share of the average that an update keeps: 0 to 1.
  double decay = 0.999;
  /// An update after each step whose number, from 0, is a multiple of it; at least 1.
  std::int64_t every_n_steps = 1;
  /// The first step, from 0, whose weights count.
  std::int64_t starting_at_step = 0;
};

/// average = decay * average + (1 - decay) * weights, as Lightning's EMAWeightAveraging.
class exponential_moving_average : public weight_averaging {
public:
  /// Throws user_error (bad_configuration) for impossible values.
  explicit exponential_moving_average(exponential_moving_average_options how = {});

protected:
  bool due_after_step(std::int64_t step) const override;
  double share(std::int64_t) const override { return 1 - how_.decay; }

private:
  exponential_moving_average_options how_;
};

/// Options of a stochastic_weight_averaging.
struct stochastic_weight_averaging_options {
  /// The first epoch whose weights count: an epoch from 0, or a share of max_epochs.
  batch_limit start = 0.8;
  /// The rate that is approached from there on, epoch by epoch, as PyTorch's SWALR does. Unset: the
  /// module's own rates and schedulers. With it the module may have no schedulers.
  std::optional<double> learning_rate = std::nullopt;
  /// Epochs until `learning_rate` is reached; 0: at once.
  std::int64_t annealing_epochs = 10;
  /// The shape of the way from the former rate to `learning_rate`.
  enum class annealing : std::uint8_t { cosine, linear };
  /// Without `learning_rate` of no effect.
  annealing how = annealing::cosine;
};

/// The equal average of the weights at the end of each epoch from `start` on. Running statistics of
/// batch norm are averaged as well; no pass over the data recomputes them.
class stochastic_weight_averaging : public weight_averaging {
public:
  /// Throws user_error (bad_configuration) for impossible values.
  explicit stochastic_weight_averaging(stochastic_weight_averaging_options how = {});
  void setup(module& m, stage purpose) override;
  void on_train_start(module& m) override;
  void on_train_epoch_start(module& m, std::int64_t epoch) override;
  callback_state save_state() const override;
  void load_state(module& m, const callback_state& from) override;

protected:
  bool due_after_epoch(std::int64_t epoch) const override { return epoch >= first_; }
  double share(std::int64_t updates) const override;

private:
  stochastic_weight_averaging_options how_;
  std::int64_t first_ = 0;
  std::vector<std::vector<double>> base_rates_;  // by optimizer and group, before the approach
};

}  // namespace troupe
