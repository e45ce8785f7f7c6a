// Every hook of a strategy, of an accelerator and of the fit loop, as a plain typed message.
//
// Who sends it to whom: the fit machine of a rank emits runs of these (messages/lane.hpp); the rank
// actor hands a run to its lane; the lane's learner handles them in order. Observers that ask for
// hooks receive them afterwards as `seen::hook` (troupe/observation.hpp). Deciders act inside the
// machine.
// What the receiver may conclude: that all earlier hooks of the run were handled without an
// exception, on this rank. Nothing about other ranks, but for what a collective between them says.
// If it is late or lost: a run carries a fence and a sequence; a run of a closed generation is
// dropped by the lane, unanswered work throws `generation_closed` there.
//
// Names are those Lightning's users know; section 7 of its fit loop fixes the order
// (actors/fit_machine.hpp).
#pragma once

#include "troupe/detail/loop_state.hpp"
#include "troupe/detail/position.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace troupe {

namespace hooks {

// clang-format off
/// A hook that carries nothing but where it happens.
struct plain {
  position at;
  friend bool operator==(const plain&, const plain&) = default;
};

// --- setting up, taking down (stage `start`; section 7: 1..14, 42..45) ---------------------------

/// The strategy takes the module; first act of every run.
struct connect : plain { static constexpr std::string_view name = "connect"; };
/// Device, thread, random generator, ranks; the communicator of the generation is bound from here
/// on.
struct setup_environment : plain { static constexpr std::string_view name = "setup_environment"; };
/// Once per host (local rank 0); the others wait at a barrier.
struct prepare_data : plain { static constexpr std::string_view name = "prepare_data"; };
/// Data module, module, strategy; between the barriers "pre_setup" and "post_setup".
struct setup : plain { static constexpr std::string_view name = "setup"; };
/// Layers built late, inside `model_sharded_context`.
struct configure_model : plain { static constexpr std::string_view name = "configure_model"; };
/// Opened around configure_model; what is built inside is born on its device (or shard).
struct model_sharded_context : plain { static constexpr std::string_view name = "model_sharded_context"; };
/// Reads a checkpoint. The outcome brings `restored`; `part` says what is taken from the file now.
struct load_checkpoint {
  enum class part : std::uint8_t { weights, everything };
  static constexpr std::string_view name = "load_checkpoint";
  position at;
  std::string path;
  part what = part::everything;
  friend bool operator==(const load_checkpoint&, const load_checkpoint&) = default;
};
struct on_load_checkpoint : plain { static constexpr std::string_view name = "on_load_checkpoint"; };
/// Moves the module to `root_device` and broadcasts rank 0's state.
struct model_to_device : plain { static constexpr std::string_view name = "model_to_device"; };
/// `configure_optimizers`; fit only. Where `strategy::late_optimizers()` says true, the learner
/// calls it in pre_dispatch instead.
struct setup_optimizers : plain { static constexpr std::string_view name = "setup_optimizers"; };
struct setup_precision : plain { static constexpr std::string_view name = "setup_precision"; };
struct on_fit_start : plain { static constexpr std::string_view name = "on_fit_start"; };
struct on_fit_end : plain { static constexpr std::string_view name = "on_fit_end"; };
/// The dispatch triad around the loops.
struct pre_dispatch : plain { static constexpr std::string_view name = "pre_dispatch"; };
struct dispatch : plain { static constexpr std::string_view name = "dispatch"; };
struct post_dispatch : plain { static constexpr std::string_view name = "post_dispatch"; };
/// Once per loader and run, with distributed sampling inserted. The outcome brings `loaders`.
/// `at.stage` says which loader, `at.dataloader` which of several.
struct process_dataloader : plain { static constexpr std::string_view name = "process_dataloader"; };
/// On every rank, with the type and the text of the job's first cause. No collective works any
/// more. What it throws is added to `others`.
struct on_exception {
  static constexpr std::string_view name = "on_exception";
  position at;
  std::string type;
  std::string what;
  friend bool operator==(const on_exception&, const on_exception&) = default;
};
/// The strategy lets go: barrier "teardown" first when `orderly`, none after a failure.
struct teardown {
  static constexpr std::string_view name = "teardown";
  position at;
  bool orderly = true;
  friend bool operator==(const teardown&, const teardown&) = default;
};

// --- training (stage `train`; section 7: 16..27, 39..42) -----------------------------------------

struct on_train_start : plain { static constexpr std::string_view name = "on_train_start"; };
struct on_train_epoch_start : plain { static constexpr std::string_view name = "on_train_epoch_start"; };
/// Fetch, convert, `on_before_batch_transfer`, move, `on_after_batch_transfer`. Keeps the batch's
/// type.
struct batch_to_device : plain { static constexpr std::string_view name = "batch_to_device"; };
/// May answer `skip_epoch` (the module's -1), if all ranks agree: any rank skips all.
struct on_train_batch_start : plain { static constexpr std::string_view name = "on_train_batch_start"; };
/// A tensor, a map with `loss`, or nothing where that is allowed (a single rank).
struct training_step : plain { static constexpr std::string_view name = "training_step"; };
/// May replace the step's output.
struct training_step_end : plain { static constexpr std::string_view name = "training_step_end"; };
struct on_before_zero_grad : plain { static constexpr std::string_view name = "on_before_zero_grad"; };
struct optimizer_zero_grad : plain { static constexpr std::string_view name = "optimizer_zero_grad"; };
struct pre_backward : plain { static constexpr std::string_view name = "pre_backward"; };
struct on_before_backward : plain { static constexpr std::string_view name = "on_before_backward"; };
/// The gradient of one micro-batch. Its weight is (samples of this rank) / (samples of all ranks in
/// the window): the micro-batches `window_first` to `window_last` of the epoch make up one step.
struct backward {
  static constexpr std::string_view name = "backward";
  position at;
  std::uint32_t before = 0;  ///< micro-batches of the window that come before this one
  std::uint32_t behind = 0;  ///< and behind it
  /// `first` and `last` are at most 2^32 micro-batches away.
  static backward of_window(const position& at, std::int64_t first, std::int64_t last) {
    return {at, static_cast<std::uint32_t>(at.batch - first),
            static_cast<std::uint32_t>(last - at.batch)};
  }
  std::int64_t window_first() const { return at.batch - before; }
  std::int64_t window_last() const { return at.batch + behind; }
  /// This one completes the window: hand buckets to the communicator.
  bool synchronize() const { return behind == 0; }
  friend bool operator==(const backward&, const backward&) = default;
};
struct on_after_backward : plain { static constexpr std::string_view name = "on_after_backward"; };
struct post_backward : plain { static constexpr std::string_view name = "post_backward"; };
struct on_before_optimizer_step : plain { static constexpr std::string_view name = "on_before_optimizer_step"; };
/// After the gradients are reduced, before the step.
struct clip_gradients {
  static constexpr std::string_view name = "clip_gradients";
  enum class algorithm : std::uint8_t { norm, value };
  position at;
  double limit = 0;
  algorithm how = algorithm::norm;
  friend bool operator==(const clip_gradients&, const clip_gradients&) = default;
};
/// One step of one optimizer. The next `closure` hooks of the run are its closure: the learner runs
/// them inside (an LBFGS more than once, others once), and the lane goes on behind them.
struct optimizer_step {
  static constexpr std::string_view name = "optimizer_step";
  position at;
  std::uint32_t closure = 0;
  friend bool operator==(const optimizer_step&, const optimizer_step&) = default;
};
/// One move of all schedulers of that kind. `plateau`: those that look at a reduced metric, behind
/// each validation of a fit.
struct lr_scheduler_step {
  static constexpr std::string_view name = "lr_scheduler_step";
  enum class interval : std::uint8_t { step, epoch, plateau };
  position at;
  interval every = interval::epoch;
  friend bool operator==(const lr_scheduler_step&, const lr_scheduler_step&) = default;
};
struct on_train_batch_end : plain { static constexpr std::string_view name = "on_train_batch_end"; };
struct on_train_epoch_end : plain { static constexpr std::string_view name = "on_train_epoch_end"; };
struct on_train_end : plain { static constexpr std::string_view name = "on_train_end"; };

// --- evaluation (stages `sanity`, `validate`, `test`, `predict`; section 7: 15, 28..38) -----------

struct on_sanity_check_start : plain { static constexpr std::string_view name = "on_sanity_check_start"; };
struct on_sanity_check_end : plain { static constexpr std::string_view name = "on_sanity_check_end"; };
struct on_validation_model_zero_grad : plain { static constexpr std::string_view name = "on_validation_model_zero_grad"; };
struct on_validation_model_eval : plain { static constexpr std::string_view name = "on_validation_model_eval"; };
struct on_validation_model_train : plain { static constexpr std::string_view name = "on_validation_model_train"; };
struct on_validation_start : plain { static constexpr std::string_view name = "on_validation_start"; };
struct on_validation_epoch_start : plain { static constexpr std::string_view name = "on_validation_epoch_start"; };
struct on_validation_batch_start : plain { static constexpr std::string_view name = "on_validation_batch_start"; };
struct validation_step : plain { static constexpr std::string_view name = "validation_step"; };
struct validation_step_end : plain { static constexpr std::string_view name = "validation_step_end"; };
struct on_validation_batch_end : plain { static constexpr std::string_view name = "on_validation_batch_end"; };
struct on_validation_epoch_end : plain { static constexpr std::string_view name = "on_validation_epoch_end"; };
struct on_validation_end : plain { static constexpr std::string_view name = "on_validation_end"; };
struct on_test_model_eval : plain { static constexpr std::string_view name = "on_test_model_eval"; };
struct on_test_model_train : plain { static constexpr std::string_view name = "on_test_model_train"; };
struct on_test_start : plain { static constexpr std::string_view name = "on_test_start"; };
struct on_test_epoch_start : plain { static constexpr std::string_view name = "on_test_epoch_start"; };
struct on_test_batch_start : plain { static constexpr std::string_view name = "on_test_batch_start"; };
struct test_step : plain { static constexpr std::string_view name = "test_step"; };
struct test_step_end : plain { static constexpr std::string_view name = "test_step_end"; };
struct on_test_batch_end : plain { static constexpr std::string_view name = "on_test_batch_end"; };
struct on_test_epoch_end : plain { static constexpr std::string_view name = "on_test_epoch_end"; };
struct on_test_end : plain { static constexpr std::string_view name = "on_test_end"; };
struct on_predict_model_eval : plain { static constexpr std::string_view name = "on_predict_model_eval"; };
struct on_predict_model_train : plain { static constexpr std::string_view name = "on_predict_model_train"; };
struct on_predict_start : plain { static constexpr std::string_view name = "on_predict_start"; };
struct on_predict_epoch_start : plain { static constexpr std::string_view name = "on_predict_epoch_start"; };
struct on_predict_batch_start : plain { static constexpr std::string_view name = "on_predict_batch_start"; };
struct predict_step : plain { static constexpr std::string_view name = "predict_step"; };
struct on_predict_batch_end : plain { static constexpr std::string_view name = "on_predict_batch_end"; };
struct on_predict_epoch_end : plain { static constexpr std::string_view name = "on_predict_epoch_end"; };
struct on_predict_end : plain { static constexpr std::string_view name = "on_predict_end"; };

// --- meeting of all ranks -------------------------------------------------------------------------

/// All ranks of the world wait for each other. `label` names the barrier in errors.
struct barrier {
  static constexpr std::string_view name = "barrier";
  position at;
  std::string label;
  friend bool operator==(const barrier&, const barrier&) = default;
};

// --- state -------------------------------------------------------------------------------------

/// All ranks consolidate; rank 0 gets the state, the others an empty one.
struct optimizer_state : plain { static constexpr std::string_view name = "optimizer_state"; };
struct on_save_checkpoint : plain { static constexpr std::string_view name = "on_save_checkpoint"; };
/// Takes a snapshot on every rank (collectives allowed); the outcome of rank 0 brings it, the
/// checkpointer writes it while training goes on.
struct save_checkpoint {
  static constexpr std::string_view name = "save_checkpoint";
  position at;
  loop_state loop;  ///< what the fit machine needs to go on from here
  friend bool operator==(const save_checkpoint&, const save_checkpoint&) = default;
};

}  // namespace hooks
// clang-format on

/// The closed set of hooks. A new hook is added here and nowhere else in the interfaces; the link's
/// codec sends its index.
using hook_types = std::variant<
    hooks::connect, hooks::setup_environment, hooks::prepare_data, hooks::setup,
    hooks::configure_model, hooks::model_sharded_context, hooks::load_checkpoint,
    hooks::on_load_checkpoint, hooks::model_to_device, hooks::setup_optimizers,
    hooks::setup_precision, hooks::on_fit_start, hooks::on_fit_end, hooks::pre_dispatch,
    hooks::dispatch, hooks::post_dispatch, hooks::process_dataloader, hooks::on_exception,
    hooks::teardown, hooks::on_train_start, hooks::on_train_epoch_start, hooks::batch_to_device,
    hooks::on_train_batch_start, hooks::training_step, hooks::training_step_end,
    hooks::on_before_zero_grad, hooks::optimizer_zero_grad, hooks::pre_backward,
    hooks::on_before_backward, hooks::backward, hooks::on_after_backward, hooks::post_backward,
    hooks::on_before_optimizer_step, hooks::clip_gradients, hooks::optimizer_step,
    hooks::lr_scheduler_step, hooks::on_train_batch_end, hooks::on_train_epoch_end,
    hooks::on_train_end, hooks::on_sanity_check_start, hooks::on_sanity_check_end,
    hooks::on_validation_model_zero_grad, hooks::on_validation_model_eval,
    hooks::on_validation_model_train, hooks::on_validation_start, hooks::on_validation_epoch_start,
    hooks::on_validation_batch_start, hooks::validation_step, hooks::validation_step_end,
    hooks::on_validation_batch_end, hooks::on_validation_epoch_end, hooks::on_validation_end,
    hooks::on_test_model_eval, hooks::on_test_model_train, hooks::on_test_start,
    hooks::on_test_epoch_start, hooks::on_test_batch_start, hooks::test_step, hooks::test_step_end,
    hooks::on_test_batch_end, hooks::on_test_epoch_end, hooks::on_test_end,
    hooks::on_predict_model_eval, hooks::on_predict_model_train, hooks::on_predict_start,
    hooks::on_predict_epoch_start, hooks::on_predict_batch_start, hooks::predict_step,
    hooks::on_predict_batch_end, hooks::on_predict_epoch_end, hooks::on_predict_end, hooks::barrier,
    hooks::optimizer_state, hooks::on_save_checkpoint, hooks::save_checkpoint>;

}  // namespace troupe
