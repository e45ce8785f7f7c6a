// The order of hooks of one rank: a pure state machine. The rank actor hands it events and carries
// out its actions; it knows neither lane nor clock nor peers.
//
// A fit, in order ([x]: only when it applies; a line is one run of hooks at least):
//   1 connect, setup_environment, prepare_data, barrier "pre_setup", setup, barrier "post_setup",
//     model_sharded_context, configure_model, [load_checkpoint weights, [on_load_checkpoint]],
//     model_to_device, [setup_optimizers], setup_precision, process_dataloader (train),
//     [process_dataloader (validate)]
//   2 [process_dataloader of further loaders], on_fit_start, pre_dispatch, [late setup_optimizers],
//     [load_checkpoint everything], dispatch, barrier "run-stage"
//   3 [on_sanity_check_start, a validation of stage sanity, on_sanity_check_end]: not when resuming
//   4 on_train_start
//   5 for each step: [on_train_epoch_start], its window of micro-batches (hook_sequences.hpp)
//   6 behind a micro-batch where validation is due: a validation, [lr_scheduler_step plateau],
//     then early stopping looks at the metrics
//   7 behind an epoch's last batch: on_train_epoch_end, [lr_scheduler_step epoch]
//   8 [a checkpoint]: one at most per step
//   9 [the last checkpoint], on_train_end, post_dispatch, on_fit_end
// With nothing to train (no batches, or the limits are reached already) 3 to 8 and on_train_end are
// left out. validate, test and predict: 1 without optimizers, 2 without fit's hooks, the
// evaluation, post_dispatch. call: connect, setup_environment, pre_dispatch, dispatch,
// post_dispatch. The rank actor adds on_exception and teardown itself.
//
// Steps. A window joins up to `accumulate` micro-batches of one epoch; the last of an epoch may be
// short. With several optimizers each has its own closure and step within the batch; together they
// count as one step. A strategy that accumulates itself (optimizer_facts) hears an optimizer_step
// behind every micro-batch; what counts as a step stays the window. A run reaches to the end of the
// window, to the next micro-batch with a validation behind it, or over `run_batches` micro-batches.
// Validation may fall inside a window.
//
// A resumed epoch goes on at a cursor in samples, with the ranks and the batch size of this run:
// its micro-batches are those done before and those that the rest makes. Windows, limits and the
// validation interval count them, wherever they were done; a share is a share of that number.
//
// Ends. There is one place where a fit ends or holds: at a step boundary, behind everything that is
// due there (validation, epoch end, checkpoint), before the first hook of the next step. Looked at
// in this order: max_epochs and max_steps; a hook's stop or early stopping; the agreed stop. A fit
// that ends inside an epoch runs neither on_train_epoch_end nor epoch schedulers: the epoch is not
// over, and a resumed fit goes on with the very next hook (it repeats on_train_start, not
// on_train_epoch_start). skip_epoch from on_train_batch_start runs no further batch hook and no
// validation, but the epoch's end; a window it interrupts is dropped: it makes no step, and its
// gradients go with the next window's zero_grad.
//
// Leaving is agreed. propose_stop is answered with the number of steps this rank will have done
// when it next could stop: those done, plus one while it is inside a step. It does not pass that
// number until stop_at names one that is no less than any rank's. All ranks then end at exactly
// that many steps, or before if they end anyway. As ranks decide at one place per boundary, the
// same hooks have run on all of them. validate, test and predict count evaluation batches in place
// of steps: they end behind that many batches with the evaluation's closing hooks (figures of a
// part), or without an evaluation when there were none. A call is not interrupted.
#pragma once

#include "actors/fit_plan.hpp"
#include "actors/shared_value.hpp"
#include "messages/control.hpp"
#include "messages/lane.hpp"

#include <iosfwd>
#include <optional>
#include <variant>
#include <vector>

namespace troupe {

namespace fit_events {

/// The generation is active: begin. Once.
struct begin {};
/// The lane's answer to the run in flight. `handled` counts leading hooks of the run, those of
/// closures included. Words: proceed (all handled), skip_epoch (the last handled is
/// on_train_batch_start), attention (the machine emits the rest again). `failed` is the rank
/// actor's, never the machine's. A stop may come with any of them.
struct ran {
  std::uint32_t handled = 0;
  hook_outcome outcome;
};
/// See troupe::propose_stop. Repeating it repeats the vote and changes nothing.
struct propose_stop {
  stop_reason why = stop_reason::caller;
};
/// See troupe::stop_at. Repeating it changes nothing.
struct stop_at {
  std::int64_t step = 0;
  stop_reason why = stop_reason::caller;
  friend bool operator==(const stop_at&, const stop_at&) = default;
};

}  // namespace fit_events

using fit_event =
    std::variant<fit_events::begin, fit_events::ran, fit_events::propose_stop, fit_events::stop_at>;

namespace fit_actions {

/// Hand these to the lane. Never more than one run in flight; never empty.
struct run {
  std::vector<hook> hooks;
  friend bool operator==(const run&, const run&) = default;
};
/// Answer the proposal: this rank will not pass `step` without a further word.
struct vote {
  std::int64_t step = 0;
  friend bool operator==(const vote&, const vote&) = default;
};
/// An optimizer step is finished (all of its window's hooks): `step` are done.
struct step_finished {
  std::int64_t step = 0;
  friend bool operator==(const step_finished&, const step_finished&) = default;
};
/// Reduced values became known, the same on all ranks. `at.step` counts the steps done, the one
/// they were logged in included. Those of a sanity check are dropped.
struct metrics_known {
  position at;
  metrics logged;
  friend bool operator==(const metrics_known&, const metrics_known&) = default;
};
/// The end: nothing follows but votes. `why` is none when the run reached its limits.
struct finished {
  stop_reason why = stop_reason::none;
  loop_state loop;
  friend bool operator==(const finished&, const finished&) = default;
};

}  // namespace fit_actions

using fit_action = std::variant<fit_actions::run, fit_actions::vote, fit_actions::step_finished,
                                fit_actions::metrics_known, fit_actions::finished>;
std::ostream& operator<<(std::ostream& out, const fit_action& action);

/// A regular value. Not thread-safe. After an exception it is of no further use: user_error for
/// what a user can mend (a missing monitor, an impossible validation interval), internal_error for
/// an event that can not come now.
class fit_machine {
public:
  explicit fit_machine(shared_value<fit_plan> plan);

  std::vector<fit_action> on(const fit_event& event);
  /// The same, added to `out`. When it throws, nothing was added that is of use.
  void on(const fit_event& event, std::vector<fit_action>& out);
  /// The same for fit_events::ran, of which it wants no copy.
  void ran(std::uint32_t handled, const hook_outcome& outcome, std::vector<fit_action>& out);

  bool finished() const { return phase_ == phase::done; }
  /// Waits at a step boundary for stop_at.
  bool holding() const;
  /// No step comes any more: a snapshot taken so far is the last of the run.
  bool closing() const {
    return phase_ == phase::last_checkpoint || phase_ == phase::close || finished();
  }
  /// Where the run stands; `steps` moves when a step's last hook was handled.
  const loop_state& loop() const { return loop_; }
  /// The part of the run in progress: stage, epoch, steps done, last micro-batch of the run in
  /// flight. For progress.
  position at() const;
  /// Micro-batches (after limits) of the training epoch, or batches of all loaders of the
  /// evaluation in progress. For progress.
  std::int64_t batches() const;
  const fit_plan& plan() const { return *plan_; }

  /// The same for equal machines, on every computer.
  std::uint64_t digest() const;
  friend bool operator==(const fit_machine& a, const fit_machine& b);
  friend std::ostream& operator<<(std::ostream& out, const fit_machine& machine);

private:
  enum class phase : std::uint8_t {
    idle,
    prepare,      // 1
    launch,       // 2
    sanity,       // 3
    train_start,  // 4
    window,       // 5
    validation,   // 6
    epoch_end,    // 7
    checkpoint,   // 8
    last_checkpoint,
    evaluation,  // validate, test, predict
    close,       // 9
    done,
  };
  using actions = std::vector<fit_action>;

  void begin(actions& out);
  void propose_stop(actions& out);
  void stop_at(const fit_events::stop_at& event, actions& out);
  void check(std::uint32_t handled, run_verdict word) const;
  void learn(const hook_outcome& outcome, actions& out);
  void emit(actions& out);

  // Where to go on. Each ends in a phase with hooks to run, or in holding.
  void enter(phase next);
  void leave_phase(actions& out);
  void launched();
  void boundary();
  void epoch_ended();
  void hold_or_go();
  void enter_span();
  void span_done(actions& out);
  void end(stop_reason why);
  void enter_evaluation(phase next);
  void next_evaluation_span();
  void evaluation_span_done();

  std::int64_t vote() const;
  stage stage_now() const;
  std::int64_t batches_of(const loader_length& loader, stage s) const;
  std::int64_t batches_of(stage s) const;
  std::int64_t train_batches() const;
  std::int64_t epoch_batches(const loader_length& loader) const;
  std::int64_t window_end() const;
  std::int64_t validation_interval() const;
  bool validation_due_behind(std::int64_t batches) const;
  bool limits_reached() const;
  void check_against_facts() const;
  std::vector<hook> segment() const;
  void train_segment(position where, std::vector<hook>& out) const;
  void evaluation_segment(position where, std::vector<hook>& out) const;
  static std::string_view name_of(phase p);

  shared_value<fit_plan> plan_;
  phase phase_ = phase::idle;
  loop_state loop_;
  std::vector<loader_length> loaders_;
  optimizer_facts optimizers_;
  std::int64_t batch_ = 0;      // next micro-batch; past loop_.batch inside a window
  std::int64_t evaluated_ = 0;  // batches of the evaluation in progress, over all its loaders
  std::int64_t until_ = 0;     // where the segment in progress ends, in micro-batches or evaluated_
  bool closing_ = false;       // the segment in progress closes the evaluation
  std::uint32_t handled_ = 0;  // hooks of the segment in progress that are done
  std::uint32_t length_ = 0;   // hooks of the segment in progress
  std::uint32_t in_flight_ = 0;  // hooks of the run in flight
  bool trained_ = false;         // on_train_start has run
  // The micro-batch and the cursor at which `resumed_epoch_` was resumed.
  std::int64_t resumed_epoch_ = undefined;
  std::int64_t resumed_batch_ = 0;
  std::int64_t resumed_cursor_ = 0;
  std::int64_t last_saved_ = undefined;     // step of the newest checkpoint, the resumed one too
  std::int64_t last_snapshot_ = undefined;  // step of the last snapshot of this run
  stop_reason ending_ = stop_reason::none;  // a hook's stop or early stopping
  stop_reason why_ = stop_reason::none;     // why the run ended
  std::optional<std::int64_t> hold_;        // voted: do not pass
  std::optional<fit_events::stop_at> stop_;
};

}  // namespace troupe
