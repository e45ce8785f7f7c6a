// The order of hooks of one rank (docs/fit_order.md) as a pure state machine: fit_events.hpp has
// its table. The rank machine executes its actions. It knows neither lane nor clock nor peers.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <vector>

#include "actors/fit_events.hpp"
#include "actors/fit_intervals.hpp"
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
  /// A job that fails saves the last point (checkpoint_policy::on_exception).
  bool saves_on_exception() const;
  std::optional<loop_state> unsaved() const;  ///< that point, unless it is saved
  /// The last point passed; number 0: none, or the plan keeps none.
  const resume_point& point() const { return point_; }
  bool finished() const { return phase_ == phase::done; }
  /// Waits at a step boundary for stop_at.
  bool holding() const;
  /// True once the step that stop_at named with `pause` is done: the machine waits for `rewind`.
  bool paused() const { return phase_ == phase::at_point && stop_.agreed.has_value(); }
  /// No step comes any more: a snapshot taken so far is the last of the run.
  bool closing() const;
  /// Where the run stands; `steps` moves when a step's last hook was handled.
  const loop_state& loop() const { return loop_; }
  /// For progress: stage, epoch, steps done; batch: the last of the run in flight, or evaluated.
  position at() const;
  /// For progress, after limits: batches of the epoch, or of all loaders of the evaluation.
  std::int64_t batches() const;
  const fit_plan& plan() const { return *plan_; }

  /// The same for equal machines, on every computer.
  std::uint64_t digest() const;
  friend bool operator==(const fit_machine&, const fit_machine&) = default;
  friend std::ostream& operator<<(std::ostream& out, const fit_machine& machine);

private:
  using phase = fit_phase;
  using actions = std::vector<fit_action>;

  void begin(actions& out);
  void set_up(bool trained, actions& out);
  void resume(actions& out);
  void go_on();
  void vote_on_stop(actions& out);
  void agree_on_stop(const stop_at& event, actions& out);
  void check(std::uint32_t handled, run_verdict word) const;
  void learn(const hook_outcome& outcome, actions& out);
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
  void wait_at(const resume_point& where);
  void hold_or_go();
  void enter_span();
  void span_done(actions& out);
  void end(stop_reason why);
  void enter_evaluation(phase next);
  void next_evaluation_span();
  void evaluation_span_done();

  fit_intervals intervals() const { return {*plan_, loaders_, loop_}; }
  std::int64_t vote() const;
  stage stage_now() const;
  std::vector<hook> segment() const;

  shared_value<fit_plan> plan_;
  phase phase_ = phase::idle;
  loop_state loop_;
  loader_table loaders_;
  optimizer_facts optimizers_;
  segment_progress segment_;
  std::int64_t batch_ = 0;      // next micro-batch; past loop_.batch inside a window
  std::int64_t evaluated_ = 0;  // batches of the evaluation in progress, over all its loaders
  std::int64_t until_ = 0;      // where the segment ends, in micro-batches or evaluated_
  bool closing_ = false;        // the segment closes the evaluation
  bool applied_ = false;        // the weights of the window's step are updated
  bool trained_ = false;        // on_train_start has run
  bool joins_ = false;          // runs the set-up hooks without the other ranks
  std::int64_t last_saved_ = undefined;     // step of the newest checkpoint, the resumed one too
  std::int64_t last_snapshot_ = undefined;  // step of the last snapshot of this run
  hook_requests requests_;
  stop_reason why_ = stop_reason::none;  // why the run ended
  stop_agreement stop_;
  resume_point point_;
};

}  // namespace troupe
