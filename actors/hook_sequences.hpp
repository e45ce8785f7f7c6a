// The hooks of each part of a run, in order: pure functions that append to a list. The fit machine
// decides which part comes next; here stands what a part consists of.
#pragma once

#include "actors/fit_plan.hpp"
#include "messages/lane.hpp"

#include <vector>

namespace troupe::hook_sequences {

using hook_list = std::vector<hook>;

/// Connecting up to the first loaders: everything that needs no answer.
void prepare(const fit_plan& plan, hook_list& out);
/// From the further loaders to the barrier "run-stage".
void launch(const fit_plan& plan, const std::vector<loader_length>& loaders, hook_list& out);

/// One micro-batch of the window [window_first, window_last] of its epoch.
struct micro_batch {
  position at;  ///< stage train, with the batch and the steps done before it
  std::int64_t window_first = 0;
  std::int64_t window_last = 0;
  std::int32_t splits = 1;  ///< parts in time, where facts say that there are any
};
/// batch_to_device, on_train_batch_start, [tbptt_split_batch]; then for each split and optimizer
/// the closure
///   training_step, training_step_end, [on_before_zero_grad, optimizer_zero_grad] (first of the
///   window), pre_backward, on_before_backward, backward, on_after_backward, post_backward,
///   [on_before_optimizer_step, [clip_gradients]] (last of the window)
/// as it is, or behind its optimizer_step on the last of the window; then there
/// [lr_scheduler_step step]; on_train_batch_end. Where the strategy accumulates itself every
/// micro-batch has its optimizer_step (and what precedes it in the closure). With manual
/// optimization there are only training_step and training_step_end between the batch's start and
/// end.
void train_batch(const fit_plan& plan, const optimizer_facts& facts, const micro_batch& batch,
                 hook_list& out);
/// on_train_epoch_end, [lr_scheduler_step epoch].
void epoch_end(const optimizer_facts& facts, const position& at, hook_list& out);

/// on_..._model_eval, on_..._start, on_..._epoch_start, with on_sanity_check_start before them at
/// stage sanity, and on_validation_model_zero_grad when no gradient is awaited any more.
void open_evaluation(const position& at, bool zero_grad, hook_list& out);
/// batch_to_device, on_..._batch_start, ..._step, [..._step_end] (not predict), on_..._batch_end.
void evaluation_batch(const position& at, hook_list& out);
/// on_..._epoch_end, on_..._end, on_..._model_train, with on_sanity_check_end behind them at stage
/// sanity.
void close_evaluation(const position& at, hook_list& out);

/// optimizer_state of each optimizer, on_save_checkpoint, save_checkpoint.
void checkpoint(const optimizer_facts& facts, const position& at, const loop_state& loop,
                hook_list& out);
/// [on_train_end], post_dispatch, [on_fit_end].
void close(const fit_plan& plan, bool trained, const hooks::fit_end& end, hook_list& out);

}  // namespace troupe::hook_sequences
