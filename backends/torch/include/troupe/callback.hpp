// A callback: takes part in a run beside the module. It is for what is not the model's business:
// averages of the weights, timers, statistics, texts for people. <troupe/callbacks.hpp> has ready
// ones; docs/callbacks.md shows how to use and write them.
#pragma once

#include "troupe/data.hpp"
#include "troupe/detail/position.hpp"
#include "troupe/learner.hpp"
#include "troupe/options.hpp"

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace troupe {

struct module;

/// What a callback keeps over a resume.
struct callback_state {
  std::string json = {};                           ///< empty: nothing
  std::map<std::string, at::Tensor> tensors = {};  ///< dense, by a name of the callback's own
  /// Neither text nor tensors: nothing is saved.
  bool empty() const { return json.empty() && tensors.empty(); }
};

/// Thrown where a member of a callback threw `nested`: the text names the callback. Instead of it
/// - a user_error stays a user_error with its code, and gets the callback's name,
/// - an internal_error and the errors of collectives pass as they are.
class callback_failed : public std::exception {
public:
  /// `what`: the whole text, the callback's name included.
  explicit callback_failed(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

private:
  std::string what_;
};

/// One per rank: made, called and destroyed by one thread, in the rank's lane. All ranks have the
/// same callbacks in the same order.
/// - A hook is called on the callbacks in their order, then on the module, then on the strategy.
///   Other orders are said at the hook. docs/fit_order.md says when hooks are called.
/// - Steps, transfers, modes (on_validation_model_eval) and what replaces them are the module's
///   alone.
/// - `m` gives what a hook may need: at(), logged(), log(), stop(), add_to_queue(), collectives,
///   optimizers_in_use(), strategy_in_use() and by it the job's options. A collective has to be
///   called by all ranks.
/// - What a member throws is the rank's failure (callback_failed).
class callback {
public:
  virtual ~callback() = default;

  // Before the ranks start.
  /// Changes the job's options for all of its ranks. Called on the program's callback, not on a
  /// rank's copy, in the initiating call and in the order of the callbacks.
  /// - Applied to options that it has changed it changes nothing. Each rank applies it to a copy of
  ///   its options, and a difference is the rank's failure. `ranks` and devices do not count there.
  /// - Throws user_error if the options contradict it; nothing has been started then.
  /// - Not called on callbacks that functions make (callback_factory), so those may change nothing.
  virtual void configure(trainer_options&) const {}

  // Set-up and teardown.
  /// After the data's.
  virtual void setup(module&, stage) {}
  /// After the strategy's, before the module's.
  virtual void teardown(module&, stage) {}
  /// First and last of a fit, outside of its loops. Not called in validate, test and predict.
  /// In on_fit_end, on_train_end and teardown module::why_ended() is the reason.
  /// @{
  virtual void on_fit_start(module&) {}
  virtual void on_fit_end(module&) {}
  /// @}
  /// Before the strategy's and the module's. Not called when the module was not made.
  virtual void on_exception(module&, std::string_view /*type*/, std::string_view /*what*/) {}

  // Training.
  /// Around all epochs; a resumed fit calls on_train_start again. Neither is called where there is
  /// nothing to train.
  /// @{
  virtual void on_train_start(module&) {}
  virtual void on_train_end(module&) {}
  /// @}
  /// Before the epoch's first batch; not again in an epoch that is resumed.
  virtual void on_train_epoch_start(module&, std::int64_t /*epoch*/) {}
  /// Before the module's; if monitors() after it.
  virtual void on_train_epoch_end(module&, std::int64_t /*epoch*/) {}
  /// Once per micro-batch; `index` counts them in the epoch. The batch is on the rank's device, and
  /// empty on a rank without samples in it.
  virtual void on_train_batch_start(module&, const batch&, std::int64_t /*index*/) {}
  /// After the micro-batch's steps and their update; `output` is what the step returned.
  virtual void on_train_batch_end(module&, const step_output&, const batch&,
                                  std::int64_t /*index*/) {}
  /// In the first micro-batch of an optimizer step, once per optimizer, before its gradients are
  /// dropped.
  virtual void on_before_zero_grad(module&, torch::optim::Optimizer&) {}
  /// `loss` is scaled by the precision, not yet weighted. Not called on a rank without samples.
  virtual void on_before_backward(module&, const at::Tensor& /*loss*/) {}
  /// After each micro-batch's backward. Gradients are summed over ranks in a window's last one.
  virtual void on_after_backward(module&) {}
  /// Gradients are summed over ranks and unscaled, not yet clipped.
  virtual void on_before_optimizer_step(module&, torch::optim::Optimizer&) {}

  // Evaluation. `on_validation_*` are called in the sanity check too.
  /// Around the sanity check's validation. Not called in a resumed fit.
  /// @{
  virtual void on_sanity_check_start(module&) {}
  virtual void on_sanity_check_end(module&) {}
  /// @}
  /// Around all loaders of an evaluation, without gradients. In on_validation_epoch_end its values
  /// are not reduced yet; in on_validation_end logged() has them.
  /// @{
  virtual void on_validation_start(module&) {}
  virtual void on_validation_end(module&) {}
  virtual void on_validation_epoch_start(module&) {}
  virtual void on_validation_epoch_end(module&) {}
  /// @}
  /// `index` counts the batches of loader `dataloader`. On a rank without samples the batch and the
  /// output are empty.
  /// @{
  virtual void on_validation_batch_start(module&, const batch&, std::int64_t /*index*/,
                                         std::int32_t /*dataloader*/) {}
  virtual void on_validation_batch_end(module&, const step_output&, const batch&,
                                       std::int64_t /*index*/, std::int32_t /*dataloader*/) {}
  /// @}
  /// As those of validation.
  /// @{
  virtual void on_test_start(module&) {}
  virtual void on_test_end(module&) {}
  virtual void on_test_epoch_start(module&) {}
  virtual void on_test_epoch_end(module&) {}
  virtual void on_test_batch_start(module&, const batch&, std::int64_t /*index*/,
                                   std::int32_t /*dataloader*/) {}
  virtual void on_test_batch_end(module&, const step_output&, const batch&, std::int64_t /*index*/,
                                 std::int32_t /*dataloader*/) {}
  /// @}
  /// As those of validation; `output` is what predict_step returned.
  /// @{
  virtual void on_predict_start(module&) {}
  virtual void on_predict_end(module&) {}
  virtual void on_predict_epoch_start(module&) {}
  virtual void on_predict_epoch_end(module&) {}
  virtual void on_predict_batch_start(module&, const batch&, std::int64_t /*index*/,
                                      std::int32_t /*dataloader*/) {}
  virtual void on_predict_batch_end(module&, const value& /*output*/, const batch&,
                                    std::int64_t /*index*/, std::int32_t /*dataloader*/) {}
  /// @}

  // Checkpoints.
  /// On all ranks, before the module's and before the weights are copied.
  virtual void on_save_checkpoint(module&) {}
  /// On all ranks: weights, optimizers and the callbacks' states are copied.
  virtual void on_checkpoint_taken(module&) {}
  /// After the module's. The weights were read, and are not on their device yet.
  virtual void on_load_checkpoint(module&) {}

  // State. Rank 0's is saved with each checkpoint. A fit that resumes loads it on all ranks, after
  // on_fit_start and before on_train_start; the state of a callback that the resumed run does not
  // have is left out.
  //
  // In a job that can restart, the state is also kept with each point of the run, and a rank that
  // returns to a point gets it back. A rank that joins gets the state of another rank. So there
  // save_state is called on any rank alone, often, and calls no collective. What on_train_batch_end
  // changes belongs to its step. A rank where that hook did not return gets the state of others.
  /// The key of the state, and the callback's name in messages: by default its type. Callbacks with
  /// a state have different keys.
  virtual std::string state_key() const;
  /// Tensors may be the callback's own: the caller copies them at once.
  virtual callback_state save_state() const { return {}; }
  /// `from` is what save_state returned. Its tensors are the callback's: on the CPU,
  /// or, after a failure, where they were. It may be empty in a job that can restart: the callback
  /// becomes as it was before on_train_start.
  virtual void load_state(module&, const callback_state& /*from*/) {}

  /// True: on_train_epoch_end is called after the module's, and when the values of the epoch are in
  /// logged(): Lightning's place for early stopping and checkpoints.
  virtual bool monitors() const { return false; }
  /// False: no member reads or writes `.grad`. See module::reads_gradients.
  virtual bool reads_gradients() const { return true; }

protected:
  callback() = default;
  callback(const callback&) = default;
  callback& operator=(const callback&) = default;
};

/// Makes each rank's callback, in its lane. From a callback: ranks get copies of it. From a
/// function without an argument or of the rank's context: ranks get what it returns; it is
/// thread-safe.
class callback_factory {
public:
  /// Each rank gets a copy of `original`.
  template <class Callback>
  requires std::derived_from<Callback, callback> callback_factory(Callback original)
      : callback_factory(std::make_shared<const Callback>(std::move(original)), copies{}) {}
  /// Each rank gets what `make` returns. Never null; called by several lanes at once.
  /// @{
  template <class F>
  requires std::is_invocable_r_v < std::shared_ptr<callback>,
  const F& > callback_factory(F make)
      : make_([make = std::move(make)](const learner_context&) { return make(); }) {}
  template <class F>
  requires std::is_invocable_r_v < std::shared_ptr<callback>,
  const F&, const learner_context& > callback_factory(F make) : make_(std::move(make)) {}
  /// @}

  /// For the learner, in the rank's lane.
  std::shared_ptr<callback> operator()(const learner_context& about) const { return make_(about); }
  /// What ranks get copies of; null: a function makes their callbacks.
  const callback* original() const { return original_.get(); }

private:
  struct copies {};
  template <class Callback>
  callback_factory(std::shared_ptr<const Callback> original, copies)
      : make_([original](const learner_context&) { return std::make_shared<Callback>(*original); }),
        original_(original) {}

  std::function<std::shared_ptr<callback>(const learner_context&)> make_;
  std::shared_ptr<const callback> original_;
};

// Callbacks that change the options of a job before its ranks start (callback::configure): early
// stopping, the policy of checkpoints, the schedule of accumulation. All ranks decide on these
// options at the same step, and a job that can restart keeps their state.

/// `early_stopping{{.monitor = "val/loss", .patience = 5}}`: an entry of
/// trainer_options::stop_early. Several monitor different values; each may end the run. A resumed
/// fit goes on counting.
class early_stopping : public callback {
public:
  /// Options that are impossible are refused when the job starts.
  explicit early_stopping(early_stopping_options how = {}) : how_(std::move(how)) {}
  /// Adds the entry. Throws user_error (bad_configuration) if there is one for the same value with
  /// other settings.
  void configure(trainer_options& options) const override;
  bool reads_gradients() const override { return false; }

private:
  early_stopping_options how_;
};

/// `model_checkpoint{{.keep_best = 3, .monitor = "val/accuracy", .maximize = true}}`: the policy
/// trainer_options::checkpoint. Without it that option holds. Without effect in a fast_dev_run.
class model_checkpoint : public callback {
public:
  /// Options that are impossible are refused when the job starts.
  explicit model_checkpoint(checkpoint_policy how = {}) : how_(std::move(how)) {}
  /// Sets the policy. Throws user_error (bad_configuration), with what differs, if there is another
  /// one than the default.
  void configure(trainer_options& options) const override;
  bool reads_gradients() const override { return false; }

private:
  checkpoint_policy how_;
};

/// `gradient_accumulation_scheduler{{0, 4}, {4, 2}}`: 4 micro-batches in a step, and 2 from epoch 4
/// on. It is trainer_options::accumulate_schedule. Before its first epoch a step has one
/// micro-batch.
class gradient_accumulation_scheduler : public callback {
public:
  /// By epoch, from 0: how many micro-batches a step has from there on, at least 1. Throws
  /// user_error (bad_configuration) for an empty schedule and for impossible numbers.
  /// @{
  gradient_accumulation_scheduler(
      std::initializer_list<std::pair<const std::int64_t, std::int64_t>> schedule)
      : gradient_accumulation_scheduler(std::map<std::int64_t, std::int64_t>{schedule}) {}
  explicit gradient_accumulation_scheduler(std::map<std::int64_t, std::int64_t> schedule);
  /// @}
  /// Sets the schedule. Throws user_error (bad_configuration) if there is another one, or if
  /// accumulate_grad_batches is set.
  void configure(trainer_options& options) const override;
  bool reads_gradients() const override { return false; }

private:
  std::map<std::int64_t, std::int64_t> schedule_;
};

// A report of lazy tensors.

/// What lazy_report takes.
struct lazy_report_options {
  std::string path;  ///< a file, which is replaced
};

/// `debug` of Lightning's XLAStrategy. At the end of each epoch it logs `lazy/step_marks`,
/// `lazy/graphs`, `lazy/compilations` and `lazy/fallbacks`: the counts of the process that has the
/// most. At the end of training rank 0 writes report_of_lazy() to `path`, while no rank is in a
/// step. Other accelerators are refused with a user_error, and so is a file that cannot be written.
class lazy_report : public callback {
public:
  /// Writes where `how` says.
  explicit lazy_report(lazy_report_options how);
  void configure(trainer_options& options) const override;
  void setup(module& m, stage purpose) override;
  void on_train_epoch_end(module& m, std::int64_t epoch) override;
  void on_train_end(module& m) override;
  bool reads_gradients() const override { return false; }

private:
  lazy_report_options how_;
};

}  // namespace troupe
