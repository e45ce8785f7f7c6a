// Events, actions and phases of the fit machine (actors/fit_machine.hpp). A phase ends with the
// `ran` that handles its last hook; each phase with hooks emits run. The edges that matter:
//
// phase         event     next phase: actions
// idle          begin     prepare
// prepare       ran       launch
// launch        ran       sanity, or train_start; evaluation, if the run is none that trains;
//                           at_point after set_up, if on_train_start has not run anywhere
// sanity        ran       train_start
// train_start   ran       window; after set_up at_point: is_set_up
// window        ran       window: step_finished, at the end of a step; validation or checkpoint if
//                           one is due; epoch_end after the last batch, or with skip_epoch
// validation    ran       window; checkpoint or epoch_end as after a step
// epoch_end     ran       window of the next epoch, or checkpoint
// checkpoint    ran       window
// window        ran       at a limit, or a stop that counts: last_checkpoint; close without a save
// evaluation    ran       evaluation; close after the last batch
// last_checkpoint  ran    close
// close         ran       done: finished
// any           propose_stop  the same: vote; it does not pass the step
// window        stop_at   window up to that step; with `pause` at_point after it
// at_point      resume    where the point says: sanity, train_start, window, ...
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "actors/fit_plan.hpp"
#include "messages/control.hpp"
#include "messages/lane.hpp"

namespace troupe {

namespace fit_events {

/// The generation is active: begin. Once.
struct begin {};
/// The rank joins others that have a point already: run the set-up hooks, without them. Once.
struct set_up {
  bool trained = true;  ///< on_train_start has run at the point that the others are at
};
/// The generation is active: go on from the point, whose state the learner has. After
/// fit_machine::rewind or adopt.
struct resume {};
/// The lane's answer to the run in flight. `handled` counts leading hooks of the run, those of
/// closures included. Words: proceed (all handled), skip_epoch (the last handled is
/// on_train_batch_start), attention (the machine emits the rest again). `failed` is the rank
/// actor's, never the machine's. A stop may come with any of them.
struct ran {
  std::uint32_t handled = 0;
  hook_outcome outcome;
};

}  // namespace fit_events

/// The machine reads the step, the reason and `pause` of a message, but not its fence. A repeated
/// propose_stop repeats the vote. A repeated stop_at changes nothing, but a machine that has paused
/// repeats step_finished. A stop replaces a pause at the same step; a pause never replaces a stop.
using fit_event = std::variant<fit_events::begin, fit_events::set_up, fit_events::resume,
                               fit_events::ran, propose_stop, stop_at>;

namespace fit_actions {

/// Hand these to the lane. Never more than one run in flight; never empty.
struct run {
  std::vector<hook> hooks;
  bool keep_point = false;  ///< at its end the rank passes a point
  friend bool operator==(const run&, const run&) = default;
};
/// The answer to `set_up`: the hooks have run, and the machine waits for `resume`.
struct is_set_up {
  friend bool operator==(const is_set_up&, const is_set_up&) = default;
};
/// Answer the proposal: this rank will not pass `step` until a further order.
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
  std::vector<std::string> prog_bar = {};  ///< those that progress displays show
  friend bool operator==(const metrics_known&, const metrics_known&) = default;
};
/// The end: nothing follows but votes. `why` is none when the run reached its limits.
struct finished {
  stop_reason why = stop_reason::none;
  loop_state loop;
  friend bool operator==(const finished&, const finished&) = default;
};

}  // namespace fit_actions

using fit_action =
    std::variant<fit_actions::run, fit_actions::is_set_up, fit_actions::vote,
                 fit_actions::step_finished, fit_actions::metrics_known, fit_actions::finished>;
std::ostream& operator<<(std::ostream& out, const fit_action& action);

/// Where a fit machine stands; the numbers are the phases of docs/fit_order.md.
enum class fit_phase : std::uint8_t {
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
  at_point,  // waits for `resume`, or pauses
};
std::string_view to_string(fit_phase p);

/// How far the hooks of the segment in progress are.
struct segment_progress {
  std::uint32_t length = 0;
  std::uint32_t handled = 0;
  std::uint32_t in_flight = 0;  ///< of the run in flight
  std::int32_t splits = 0;      ///< of the batch, with truncated back-propagation; 0: not known yet
  friend bool operator==(const segment_progress&, const segment_progress&) = default;
};
/// Where a run ends or pauses, as all ranks agreed.
struct agreed_stop {
  std::int64_t step = 0;
  stop_reason why = stop_reason::none;
  bool pause = false;
  friend bool operator==(const agreed_stop&, const agreed_stop&) = default;
};
/// What the rank has voted, and what all ranks agreed on then.
struct stop_agreement {
  std::optional<std::int64_t> voted;  ///< the rank does not pass this step until they agree
  std::optional<agreed_stop> agreed;
  bool waits_at(std::int64_t step) const { return voted && !agreed && step >= *voted; }
  bool ends_at(std::int64_t step) const { return agreed && step >= agreed->step; }
  bool pauses_at(std::int64_t step) const { return ends_at(step) && agreed->pause; }
  friend bool operator==(const stop_agreement&, const stop_agreement&) = default;
};

}  // namespace troupe
