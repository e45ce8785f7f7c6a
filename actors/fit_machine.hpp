// The order of hooks of one rank as a pure state machine: docs/fit_order.md. The rank machine gives
// it events and carries out its actions (fit_events.hpp). It knows neither lane nor clock nor
// peers.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <vector>

#include "actors/fit_events.hpp"
#include "actors/shared_value.hpp"

namespace troupe {

/// A regular value. Not thread-safe. Throws user_error for what a user can fix (a missing monitor,
/// an impossible validation interval) and internal_error for an event that cannot come now. After
/// an exception the machine must not be used.
class fit_machine {
public:
  explicit fit_machine(shared_value<fit_plan> plan);

  std::vector<fit_action> on(const fit_event& event);
  /// The same, but appends the actions to `out`. If it throws, the caller must ignore them.
  void on(const fit_event& event, std::vector<fit_action>& out);
  /// The same for the event fit_events::ran, without a copy of its members.
  void ran(std::uint32_t handled, const hook_outcome& outcome, std::vector<fit_action>& out);
  /// The last answer of a generation that is over, failed or not: counts the step if its weights
  /// are updated. Adds no run.
  void settle(std::uint32_t handled, const hook_outcome& outcome, std::vector<fit_action>& out);
  /// Returns to the last point, and waits there for `resume`. Needs a point.
  void rewind() { wait_at(resume_point{point_}); }
  /// After `set_up`: the learner has received the state of `where`. Waits there for `resume`.
  void adopt(const resume_point& where);
  /// The last point, if a job that fails has to save it (checkpoint_policy::on_exception).
  std::optional<loop_state> unsaved() const;
  /// The last point passed; number 0: none, or the plan keeps none.
  const resume_point& point() const { return point_; }

  bool finished() const { return phase_ == phase::done; }
  /// Waits at a step boundary for stop_at.
  bool holding() const;
  /// Has done the step that stop_at named with `pause`, and waits for `rewind`.
  bool paused() const { return phase_ == phase::at_point && stop_.has_value(); }
  /// No step comes any more: a snapshot taken so far is the last of the run.
  bool closing() const {
    return phase_ == phase::last_checkpoint || phase_ == phase::close || finished();
  }
  /// Where the run stands; `steps` moves when a step's last hook was handled.
  const loop_state& loop() const { return loop_; }
  /// For progress: stage, epoch, steps done, last micro-batch of the run in flight.
  position at() const;
  /// For progress: micro-batches (after limits) of the epoch, or batches of the evaluation.
  std::int64_t batches() const;
  const fit_plan& plan() const { return *plan_; }

  /// The same for equal machines, on every computer.
  std::uint64_t digest() const;
  friend bool operator==(const fit_machine& a, const fit_machine& b);
  friend std::ostream& operator<<(std::ostream& out, const fit_machine& machine);

private:
  using phase = fit_phase;
  using actions = std::vector<fit_action>;

  void begin(actions& out);
  void set_up(actions& out);
  void resume(actions& out);
  void go_on();
  void vote_on_stop(actions& out);
  void agree_on_stop(const stop_at& event, actions& out);
  void check(std::uint32_t handled, run_verdict word) const;
  void learn(const hook_outcome& outcome, actions& out);
  void take_wishes(const hook_outcome& outcome);
  void emit(actions& out);

  // Where to go on. Each ends in a phase with hooks to run, or in holding.
  void enter(phase next);
  void leave_phase(actions& out);
  void launched(actions& out);
  void started();
  void boundary();
  void epoch_ended();
  void epoch_done();
  void pass_point(resume_point::next then);
  bool ends_at_point() const;
  bool awaits_splits() const;
  bool pauses() const { return stop_ && stop_->pause && loop_.steps >= stop_->step; }
  void wait_at(const resume_point& where);
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
  std::int64_t interval_counted() const;
  bool validates_in_epoch() const;
  bool validation_due_behind(std::int64_t batches) const;
  bool validation_due_now() const;
  bool save_due_now(bool epoch_ended) const;
  bool validation_was_due() const;
  bool limits_reached() const;
  bool may_stop() const;
  loop_state saved_loop() const;
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
  std::int32_t splits_ = 0;      // of the batch in progress, with truncated back-propagation
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
  std::optional<agreed_stop> stop_;
  resume_point point_;
  bool applied_ = false;         // the weights of the window's step are updated
  bool save_due_ = false;        // by the clock
  bool validation_due_ = false;  // by the clock
  bool joins_ = false;           // runs the set-up hooks without the other ranks
};

}  // namespace troupe
