// The fields of the messages between processes, for the link's codec only. With structured bindings
// a new field that is missing here is a compile error.
#pragma once

#include "messages/link.hpp"

#include <type_traits>

namespace troupe {

/// The last value of an enumeration that a message may contain.
template <class E>
struct last_of;
template <>
struct last_of<stage> : std::integral_constant<stage, stage::call> {};
template <>
struct last_of<stop_reason> : std::integral_constant<stop_reason, stop_reason::terminate> {};
template <>
struct last_of<collective_kind>
    : std::integral_constant<collective_kind, collective_kind::work_together> {};
template <>
struct last_of<failure_kind>
    : std::integral_constant<failure_kind, failure_kind::unexpected_message> {};
template <>
struct last_of<lifecycle_kind>
    : std::integral_constant<lifecycle_kind, lifecycle_kind::events_lost> {};
template <>
struct last_of<placement_kind> : std::integral_constant<placement_kind, placement_kind::processes> {
};
template <>
struct last_of<comm_hook_kind> : std::integral_constant<comm_hook_kind, comm_hook_kind::noop> {};
template <>
struct last_of<deterministic_kind>
    : std::integral_constant<deterministic_kind, deterministic_kind::warn> {};
template <>
struct last_of<profiler_kind> : std::integral_constant<profiler_kind, profiler_kind::simple> {};
template <>
struct last_of<resume_point::next>
    : std::integral_constant<resume_point::next, resume_point::next::go> {};
template <>
struct last_of<elastic_options::on_exception>
    : std::integral_constant<elastic_options::on_exception, elastic_options::on_exception::fail> {};
template <>
struct last_of<elastic_options::loss>
    : std::integral_constant<elastic_options::loss, elastic_options::loss::shrink> {};
template <>
struct last_of<fault_drill::kind>
    : std::integral_constant<fault_drill::kind, fault_drill::kind::stop> {};
template <>
struct last_of<hooks::load_checkpoint::part>
    : std::integral_constant<hooks::load_checkpoint::part,
                             hooks::load_checkpoint::part::everything> {};
template <>
struct last_of<hooks::clip_gradients::algorithm>
    : std::integral_constant<hooks::clip_gradients::algorithm,
                             hooks::clip_gradients::algorithm::value> {};
template <>
struct last_of<hooks::lr_scheduler_step::interval>
    : std::integral_constant<hooks::lr_scheduler_step::interval,
                             hooks::lr_scheduler_step::interval::plateau> {};

// --- options ---------------------------------------------------------------------------------

template <class F>
void inspect(F& f, early_stopping_options& x) {
  auto& [monitor, min_delta, patience, maximize] = x;
  f(monitor, min_delta, patience, maximize);
}
template <class F>
void inspect(F& f, checkpoint_policy& x) {
  auto& [enabled, every_epoch, every_n_steps, every, on_exception, keep_last, keep_best, monitor,
         maximize] = x;
  f(enabled, every_epoch, every_n_steps, every, on_exception, keep_last, keep_best, monitor,
    maximize);
}
template <class F>
void inspect(F& f, time_knob& x) {
  auto& [detect, hook_limit] = x;
  f(detect, hook_limit);
}
template <class F>
void inspect(F& f, elastic_options& x) {
  auto& [max_restarts, exceptions, window, shards, on_loss, min_ranks, wait, spares] = x;
  f(max_restarts, exceptions, window, shards, on_loss, min_ranks, wait, spares);
}
template <class F>
void inspect(F& f, fault_drill& x) {
  auto& [what, rank, hook, step, text, lasts] = x;
  f(what, rank, hook, step, text, lasts);
}
template <class F>
void inspect(F& f, powersgd_options& x) {
  auto& [rank, start_step, min_rate, error_feedback, warm_start, epsilon, seed] = x;
  f(rank, start_step, min_rate, error_feedback, warm_start, epsilon, seed);
}
template <class F>
void inspect(F& f, gradient_options& x) {
  auto& [cap, overlap, find_unused, static_graph, hook, powersgd, fused, buffers, states] = x;
  f(cap, overlap, find_unused, static_graph, hook, powersgd, fused, buffers, states);
}
template <class F>
void inspect(F& f, device_choice& x) {
  auto& [count, indices] = x;
  f(count, indices);
}
template <class F, class Kind>
void inspect(F& f, kind_or_name<Kind>& x) {
  f(x.name);
}
template <class F>
void inspect(F& f, trainer_options& x) {
  auto& [ranks, max_epochs, max_steps, min_epochs, min_steps, max_time, batch_size,
         accumulate_grad_batches, accumulate_schedule, truncated_bptt_steps, gradient_clip_val,
         gradient_clip_algorithm, limit_train_batches, limit_val_batches, limit_test_batches,
         limit_predict_batches, overfit_batches, val_check_interval, val_check_time,
         check_val_every_n_epoch, num_sanity_val_steps, fast_dev_run, log_every_n_steps,
         detect_anomaly, deterministic, benchmark, inference_mode, profiler, seed, precision,
         strategy, gradients, communicator, tcp_streams, placement, accelerator, devices,
         one_hook_per_run, stop_early, checkpoint, time, elastic, faults] = x;
  f(ranks, max_epochs, max_steps, min_epochs, min_steps, max_time, batch_size,
    accumulate_grad_batches, accumulate_schedule, truncated_bptt_steps, gradient_clip_val,
    gradient_clip_algorithm, limit_train_batches, limit_val_batches, limit_test_batches,
    limit_predict_batches, overfit_batches, val_check_interval, val_check_time,
    check_val_every_n_epoch, num_sanity_val_steps, fast_dev_run, log_every_n_steps, detect_anomaly,
    deterministic, benchmark, inference_mode, profiler, seed, precision, strategy, gradients,
    communicator, tcp_streams, placement, accelerator, devices, one_hook_per_run, stop_early,
    checkpoint, time, elastic, faults);
}

// --- state -----------------------------------------------------------------------------------

template <class F>
void inspect(F& f, resume_point& x) {
  auto& [number, then, trained, loop, last_saved, ending, save_due, validation_due] = x;
  f(number, then, trained, loop, last_saved, ending, save_due, validation_due);
}
template <class F>
void inspect(F& f, tensor_blob& x) {
  auto& [name, dtype, shape, bytes] = x;
  f(name, dtype, shape, bytes);
}
template <class F>
void inspect(F& f, snapshot& x) {
  auto& [loop, ranks, generation, weights_digest, model, optimizer, state] = x;
  f(loop, ranks, generation, weights_digest, model, optimizer, state);
}
template <class F>
void inspect(F& f, run_figures& x) {
  auto& [to_first_step, training, samples, waiting] = x;
  f(to_first_step, training, samples, waiting);
}

// --- hooks -----------------------------------------------------------------------------------

template <class F>
void inspect(F& f, hooks::plain& x) {
  f(x.at);
}
template <class F>
void inspect(F& f, hooks::fit_end& x) {
  auto& [at, why] = x;
  f(at, why);
}
template <class F>
void inspect(F& f, hooks::load_checkpoint& x) {
  auto& [at, path, what] = x;
  f(at, path, what);
}
template <class F>
void inspect(F& f, hooks::on_exception& x) {
  auto& [at, type, what, save] = x;
  f(at, type, what, save);
}
template <class F>
void inspect(F& f, hooks::teardown& x) {
  auto& [at, orderly] = x;
  f(at, orderly);
}
template <class F>
void inspect(F& f, hooks::backward& x) {
  auto& [at, before, behind] = x;
  f(at, before, behind);
}
template <class F>
void inspect(F& f, hooks::clip_gradients& x) {
  auto& [at, limit, how] = x;
  f(at, limit, how);
}
template <class F>
void inspect(F& f, hooks::optimizer_step& x) {
  auto& [at, closure] = x;
  f(at, closure);
}
template <class F>
void inspect(F& f, hooks::lr_scheduler_step& x) {
  auto& [at, every] = x;
  f(at, every);
}
template <class F>
void inspect(F& f, hooks::barrier& x) {
  auto& [at, label] = x;
  f(at, label);
}
template <class F>
void inspect(F& f, hooks::save_checkpoint& x) {
  auto& [at, loop] = x;
  f(at, loop);
}

template <class F>
void inspect(F& f, hooks::restore_state& x) {
  auto& [at, cursor, donors] = x;
  f(at, cursor, donors);
}

// --- observations ----------------------------------------------------------------------------

template <class F>
void inspect(F& f, seen::hook& x) {
  auto& [rank, what] = x;
  f(rank, what);
}
template <class F>
void inspect(F& f, seen::metrics& x) {
  auto& [at, logged, prog_bar] = x;
  f(at, logged, prog_bar);
}
template <class F>
void inspect(F& f, seen::progress& x) {
  auto& [at, batches, samples] = x;
  f(at, batches, samples);
}
template <class F>
void inspect(F& f, seen::collective& x) {
  auto& [rank, ranks, generation, number, kind, label, bytes, began, took, failed] = x;
  f(rank, ranks, generation, number, kind, label, bytes, began, took, failed);
}
template <class F>
void inspect(F& f, seen::lifecycle& x) {
  auto& [event, rank, generation, step, details, cause] = x;
  f(event, rank, generation, step, details);
  cause = nullptr;  // the supervisor makes these events, in the process where they are observed
}

// --- messages --------------------------------------------------------------------------------

template <class F>
void inspect(F& f, rendezvous_info& x) {
  auto& [communicator, address] = x;
  f(communicator, address);
}
template <class F>
void inspect(F& f, rank_spec& x) {
  auto& [job, rank, incarnation, purpose, options, resume, recipe, identity, meets, checkpoints,
         watched, hooks, traced, initial, arguments] = x;
  f(job, rank, incarnation, purpose, options, resume, recipe, identity, meets, checkpoints, watched,
    hooks, traced, initial, arguments);
}
template <class F>
void inspect(F& f, form_generation& x) {
  auto& [at, world, base, holders, resume] = x;
  f(at, world, base, holders, resume);
}
template <class F>
void inspect(F& f, close_generation& x) {
  auto& [at, first, last] = x;
  f(at, first, last);
}
template <class F>
void inspect(F& f, prepared& x) {
  auto& [at, digest, healing_seconds] = x;
  f(at, digest, healing_seconds);
}
template <class F>
void inspect(F& f, closed_generation& x) {
  auto& [at, held, digest, rows, saves, last] = x;
  f(at, held, digest, rows, saves, last);
}
template <class F>
void inspect(F& f, rank_finished& x) {
  auto& [at, loop, why, state, figures] = x;
  f(at, loop, why, state, figures);
}
template <class F>
void inspect(F& f, rank_failed& x) {
  auto& [at, local, gone] = x;
  f(at, local);
  gone = false;  // only the proxy sets it, after the process has ended
}
template <class F>
void inspect(F& f, queue_value& x) {
  auto& [at, what] = x;
  f(at, what);
}
template <class F>
void inspect(F& f, torn_down& x) {
  auto& [at, result, late, last] = x;
  f(at, result, late, last);
}
template <class F>
void inspect(F& f, write_checkpoint& x) {
  auto& [at, what, must, skipped] = x;
  f(at, what, must, skipped);
}
template <class F>
void inspect(F& f, observed& x) {
  f(x.what);
}
template <class F>
void inspect(F& f, dropped_observations& x) {
  auto& [progress, hooks] = x;
  f(progress, hooks);
}
template <class F>
void inspect(F& f, hook_entered& x) {
  auto& [rank, what] = x;
  f(rank, what);
}
template <class F>
void inspect(F& f, hooks_traced& x) {
  f(x.count, x.why);
}
template <class F>
void inspect(F& f, rank_ended& x) {
  f(x.rank, x.why);
}
template <class F>
void inspect(F& f, process_ready& x) {
  f(x.warm);
}
template <class F>
void inspect(F& f, warm_up& x) {
  f(x.options, x.recipe);
}
template <class F>
void inspect(F& f, process_leaves& x) {
  f(x.why);
}

}  // namespace troupe
