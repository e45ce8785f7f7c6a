// Every hook of a strategy, of an accelerator and of the fit loop, as a plain typed message.
//
// Sender and receiver: a rank's fit machine emits runs of hooks (messages/lane.hpp), the rank
// actor gives each run to its lane, and the lane's learner handles the hooks in order. Observers
// that ask for hooks receive them afterwards as `seen::hook` (troupe/observer.hpp). Deciders
// act inside the machine. What the receiver may conclude: all earlier hooks of the run were handled
// on this rank without an exception. Only a collective says anything about other ranks. Late or
// lost: a hook is part of a run, which has a fence and a sequence. The lane drops the rest of a run
// of a closed generation, and waits in the lane throw `generation_closed`.
//
// The names are those of Lightning. actors/fit_machine.hpp has the order; "section 7" is that of
// the page on Lightning in the project's reference.
#pragma once

#include "troupe/detail/loop_state.hpp"
#include "troupe/detail/position.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace troupe {

namespace hooks {

// clang-format off
/// A hook with nothing but its position.
struct plain {
  position at;
  friend bool operator==(const plain&, const plain&) = default;
};
/// An end of a fit. `why`: why the fit ended early; none where it ran to its limits.
struct fit_end {
  position at;
  stop_reason why = stop_reason::none;
  friend bool operator==(const fit_end&, const fit_end&) = default;
};

// --- setup and teardown (stage `start`; section 7: 1..14, 42..45) ---------------------------

/// The strategy receives the module. The first hook of every run.
struct connect : plain { static constexpr std::string_view name = "connect"; };
/// Device, thread, random generator, ranks. From here on the communicator of the generation is
/// bound.
struct setup_environment : plain { static constexpr std::string_view name = "setup_environment"; };
/// Once per host (local rank 0); the others wait at a barrier.
struct prepare_data : plain { static constexpr std::string_view name = "prepare_data"; };
/// Of the data module, callbacks, the module and the strategy, between the barriers "pre_setup" and
/// "post_setup".
struct setup : plain { static constexpr std::string_view name = "setup"; };
/// The module builds layers that it did not build in its constructor, inside
/// `model_sharded_context`.
struct configure_model : plain { static constexpr std::string_view name = "configure_model"; };
/// The strategy opens a context around configure_model, so that layers are created on their device
/// or shard.
struct model_sharded_context : plain { static constexpr std::string_view name = "model_sharded_context"; };
/// Reads a checkpoint. `what` says which part of the file to use. The outcome brings `restored`.
struct load_checkpoint {
  enum class part : std::uint8_t { weights, everything };
  static constexpr std::string_view name = "load_checkpoint";
  position at;
  std::string path;
  part what = part::everything;
  friend bool operator==(const load_checkpoint&, const load_checkpoint&) = default;
};
struct on_load_checkpoint : plain { static constexpr std::string_view name = "on_load_checkpoint"; };
/// Moves the module to `root_device` and broadcasts the state of rank 0.
struct model_to_device : plain { static constexpr std::string_view name = "model_to_device"; };
/// Calls `configure_optimizers`; fit only. If `strategy::late_optimizers()` is true, the learner
/// calls it in pre_dispatch instead.
struct setup_optimizers : plain { static constexpr std::string_view name = "setup_optimizers"; };
struct setup_precision : plain { static constexpr std::string_view name = "setup_precision"; };
struct on_fit_start : plain { static constexpr std::string_view name = "on_fit_start"; };
struct on_fit_end : fit_end { static constexpr std::string_view name = "on_fit_end"; };
/// Before, at and after the start of the loops.
struct pre_dispatch : plain { static constexpr std::string_view name = "pre_dispatch"; };
struct dispatch : plain { static constexpr std::string_view name = "dispatch"; };
struct post_dispatch : plain { static constexpr std::string_view name = "post_dispatch"; };
/// Once per loader and run; the loader then yields this rank's share. The outcome brings `loaders`.
/// `at.stage` says which loader, `at.dataloader` which of several.
struct process_dataloader : plain { static constexpr std::string_view name = "process_dataloader"; };
/// On every rank, with type and text of the job's first cause. Collectives throw from here on. What
/// this hook throws is added to the first cause's `others`.
struct on_exception {
  static constexpr std::string_view name = "on_exception";
  position at;
  std::string type;
  std::string what;
  /// On rank 0, with checkpoint_policy::on_exception: take a snapshot of this last point.
  std::optional<loop_state> save = {};
  friend bool operator==(const on_exception&, const on_exception&) = default;
};
/// The strategy releases what it holds: after the barrier "teardown" if `orderly`, without a
/// barrier after a failure.
struct teardown {
  static constexpr std::string_view name = "teardown";
  position at;
  bool orderly = true;
  friend bool operator==(const teardown&, const teardown&) = default;
};

// --- training (stage `train`; section 7: 16..27, 39..42) -----------------------------------------

struct on_train_start : plain { static constexpr std::string_view name = "on_train_start"; };
struct on_train_epoch_start : plain { static constexpr std::string_view name = "on_train_epoch_start"; };
/// Fetches and converts the batch, calls `on_before_batch_transfer`, moves it to the device and
/// calls `on_after_batch_transfer`. The batch keeps its type.
struct batch_to_device : plain { static constexpr std::string_view name = "batch_to_device"; };
/// The module may ask to skip the rest of the epoch (-1 in Lightning). One rank is enough, and then
/// all ranks skip.
struct on_train_batch_start : plain { static constexpr std::string_view name = "on_train_batch_start"; };
/// With truncated back-propagation through time only: cuts the batch into parts that follow each
/// other in time. The outcome brings `splits`. The hooks up to on_train_batch_end then run for each
/// part, in `at.split`.
struct tbptt_split_batch : plain { static constexpr std::string_view name = "tbptt_split_batch"; };
/// Returns a tensor, a map with `loss`, or nothing where that is allowed (a single rank).
struct training_step : plain { static constexpr std::string_view name = "training_step"; };
/// May replace the step's output.
struct training_step_end : plain { static constexpr std::string_view name = "training_step_end"; };
struct on_before_zero_grad : plain { static constexpr std::string_view name = "on_before_zero_grad"; };
struct optimizer_zero_grad : plain { static constexpr std::string_view name = "optimizer_zero_grad"; };
struct pre_backward : plain { static constexpr std::string_view name = "pre_backward"; };
struct on_before_backward : plain { static constexpr std::string_view name = "on_before_backward"; };
/// The gradient of one micro-batch. The micro-batches `window_first` to `window_last` of the epoch
/// form one step. The weight is (samples of this rank) / (samples of all ranks in the window).
struct backward {
  static constexpr std::string_view name = "backward";
  position at;
  std::uint32_t before = 0;  ///< micro-batches of the window before this one
  std::uint32_t behind = 0;  ///< micro-batches of the window after this one
  /// `first` and `last` are at most 2^32 micro-batches away.
  static backward of_window(const position& at, std::int64_t first, std::int64_t last) {
    return {at, static_cast<std::uint32_t>(at.batch - first),
            static_cast<std::uint32_t>(last - at.batch)};
  }
  std::int64_t window_first() const { return at.batch - before; }
  std::int64_t window_last() const { return at.batch + behind; }
  /// Whether this micro-batch completes the window, so that the gradients are exchanged.
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
/// One step of one optimizer. The next `closure` hooks of the run are its closure: the learner
/// handles them inside this hook (LBFGS several times, others once), and the lane continues after
/// them.
struct optimizer_step {
  static constexpr std::string_view name = "optimizer_step";
  position at;
  std::uint32_t closure = 0;
  friend bool operator==(const optimizer_step&, const optimizer_step&) = default;
};
/// Moves all schedulers of one kind. `plateau`: those that read a reduced metric, after each
/// validation of a fit and at the end of each epoch.
struct lr_scheduler_step {
  static constexpr std::string_view name = "lr_scheduler_step";
  enum class interval : std::uint8_t { step, epoch, plateau };
  position at;
  interval every = interval::epoch;
  friend bool operator==(const lr_scheduler_step&, const lr_scheduler_step&) = default;
};
struct on_train_batch_end : plain { static constexpr std::string_view name = "on_train_batch_end"; };
struct on_train_epoch_end : plain { static constexpr std::string_view name = "on_train_epoch_end"; };
struct on_train_end : fit_end { static constexpr std::string_view name = "on_train_end"; };

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

// --- rendezvous of all ranks ---------------------------------------------------------------------

/// All ranks of the world wait for each other. `label` names the barrier in errors.
struct barrier {
  static constexpr std::string_view name = "barrier";
  position at;
  std::string label;
  friend bool operator==(const barrier&, const barrier&) = default;
};

// --- state -------------------------------------------------------------------------------------

/// All ranks consolidate the state of one optimizer; rank 0 receives it, the others an empty one.
struct optimizer_state : plain { static constexpr std::string_view name = "optimizer_state"; };
struct on_save_checkpoint : plain { static constexpr std::string_view name = "on_save_checkpoint"; };
/// Takes a snapshot on every rank; collectives are allowed. The outcome of rank 0 brings it, and
/// the checkpointer writes it while training continues.
struct save_checkpoint {
  static constexpr std::string_view name = "save_checkpoint";
  position at;
  loop_state loop;  ///< what the fit machine needs to resume here
  friend bool operator==(const save_checkpoint&, const save_checkpoint&) = default;
};

/// After a failure, on a rank that goes on: the learner returns to the last point that it kept
/// (`learner::keep_point`) and forgets what it did since. The outcome brings `state_digest`. Throws
/// when the state cannot be restored, and the rank then receives it from others.
struct rewind : plain { static constexpr std::string_view name = "rewind"; };
/// In a new generation where some ranks lack the state of a point: the ranks of `donors` send it,
/// all others receive it. Collective. `at` has epoch and steps of the point and the next
/// micro-batch. The outcome brings `state_digest`.
struct restore_state {
  static constexpr std::string_view name = "restore_state";
  position at;
  std::int64_t cursor = 0;           ///< loop_state::cursor of the point
  std::vector<std::int32_t> donors;  ///< ascending, at least one
  friend bool operator==(const restore_state&, const restore_state&) = default;
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
    hooks::on_train_batch_start, hooks::tbptt_split_batch, hooks::training_step,
    hooks::training_step_end, hooks::on_before_zero_grad, hooks::optimizer_zero_grad,
    hooks::pre_backward, hooks::on_before_backward, hooks::backward, hooks::on_after_backward,
    hooks::post_backward, hooks::on_before_optimizer_step, hooks::clip_gradients,
    hooks::optimizer_step, hooks::lr_scheduler_step, hooks::on_train_batch_end,
    hooks::on_train_epoch_end, hooks::on_train_end, hooks::on_sanity_check_start,
    hooks::on_sanity_check_end, hooks::on_validation_model_zero_grad,
    hooks::on_validation_model_eval, hooks::on_validation_model_train, hooks::on_validation_start,
    hooks::on_validation_epoch_start, hooks::on_validation_batch_start, hooks::validation_step,
    hooks::validation_step_end, hooks::on_validation_batch_end, hooks::on_validation_epoch_end,
    hooks::on_validation_end, hooks::on_test_model_eval, hooks::on_test_model_train,
    hooks::on_test_start, hooks::on_test_epoch_start, hooks::on_test_batch_start, hooks::test_step,
    hooks::test_step_end, hooks::on_test_batch_end, hooks::on_test_epoch_end, hooks::on_test_end,
    hooks::on_predict_model_eval, hooks::on_predict_model_train, hooks::on_predict_start,
    hooks::on_predict_epoch_start, hooks::on_predict_batch_start, hooks::predict_step,
    hooks::on_predict_batch_end, hooks::on_predict_epoch_end, hooks::on_predict_end, hooks::barrier,
    hooks::optimizer_state, hooks::on_save_checkpoint, hooks::save_checkpoint, hooks::rewind,
    hooks::restore_state>;

/// The place of H among the types of a variant; their number, if it is none of them.
template <class H, class... Hs>
constexpr std::size_t index_in(const std::variant<Hs...>*) {
  std::size_t index = 0;
  (void)((std::is_same_v<H, Hs> || (++index, false)) || ...);
  return index;
}
/// The place of H among the hooks.
template <class H>
constexpr std::size_t hook_index = index_in<H>(static_cast<const hook_types*>(nullptr));
/// One of the hooks.
template <class H>
concept hook_type = hook_index<H> < std::variant_size_v<hook_types>;

}  // namespace troupe
