// The rank as a pure state machine around the fit machine: events in, actions out
// (rank_events.hpp). It knows neither CAF nor threads nor clocks; actors/rank.cpp executes its
// actions.
//
// A rank opens its communicator when a generation forms, begins its fit when the generation is
// active, and gives its lane one run of hooks at a time. When a run fails, the rank reports it and
// aborts the communicator at once, so that waiting peers return before the supervisor has decided.
// When the generation closes, the rank returns to its last point as soon as the lane is free, or
// runs on_exception if the job is over. In the next generation a rank that lacks the state of the
// base makes a new learner and receives the state. When the rank is taken down, teardown runs and
// the lane ends.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "actors/fit_machine.hpp"
#include "actors/rank_events.hpp"
#include "actors/rank_generation.hpp"
#include "actors/time_knob.hpp"

namespace troupe {

/// The identity of a rank and its work.
struct rank_plan {
  job_id job;
  std::int32_t rank = 0;
  incarnation_id incarnation;
  shared_value<fit_plan> fit;  ///< of all ranks
  deadlines limits;
  friend bool operator==(const rank_plan&, const rank_plan&) = default;
};

/// Every event is defined in every phase. An event with another fence changes nothing.
class rank_machine {
public:
  explicit rank_machine(rank_plan plan);

  std::vector<ranks::action> on(const ranks::event& what);
  /// The same for the event ranks::answered, without a copy of it. Appends the actions to `out`.
  void answered(const ran& what, std::vector<ranks::action>& out);

  ranks::phase phase() const { return phase_; }
  const fit_machine& fit() const { return fit_; }
  const fence& mine() const { return mine_; }
  /// The id of the next failure of this incarnation. The actor gives it to a failure, so that it
  /// can keep the exception by the id. The machine numbers a failure without an id itself.
  failure_id next_failure() const { return {plan_.incarnation, failures_ + 1}; }

  friend bool operator==(const rank_machine&, const rank_machine&) = default;
  std::uint64_t digest() const;
  friend std::ostream& operator<<(std::ostream& out, const rank_machine& machine);

private:
  using actions = std::vector<ranks::action>;

  void handle(const form_generation& e, actions& out);
  void handle(const activate_generation& e, actions& out);
  void handle(const propose_stop& e, actions& out);
  void handle(const stop_at& e, actions& out);
  void handle(const close_generation& e, actions& out);
  void handle(const tear_down& e, actions& out);
  void handle(const ranks::opened& e, actions& out);
  void handle(const ranks::answered& e, actions& out) {
    handle_answer(e.at, e.handled, e.outcome, e.what ? &*e.what : nullptr, out);
  }
  void handle_answer(const fence& at, std::uint32_t handled, const hook_outcome& outcome,
                     const failure* what, actions& out);
  void handle(const ranks::lane_ended& e, actions& out);
  void handle(const ranks::looked& e, actions& out);

  bool current(const fence& at) const;
  bool lane_free() const { return !in_flight_; }
  void feed(const fit_event& what, actions& out);
  template <class Feed>
  void feed_by(Feed give, actions& out);
  void carry_out(fit_action what, actions& out);
  void submit(std::vector<hook> hooks, bool keep_point, actions& out);
  bool holds_base() const;
  void open_communicator(actions& out);
  void restore(actions& out);
  void is_prepared(actions& out);
  void settle(std::uint32_t handled, const hook_outcome& outcome, actions& out);
  void answered_in_closing(const hook_outcome& outcome, const failure* what, actions& out);
  void go_on_closing(actions& out);
  void reopen_lane(actions& out);
  void begin_anew();
  void is_closed(actions& out);
  void fail(failure what, actions& out);
  void number(failure& what);
  void repeat_report(actions& out);
  fence stamped(std::int64_t step) const;

  rank_plan plan_;
  fence mine_;
  std::optional<next_generation> next_;
  ranks::phase phase_ = ranks::phase::waiting;
  fit_machine fit_;
  std::vector<fit_action> todo_;  ///< empty between events: only its memory is kept
  std::optional<sequence_id> in_flight_;
  rank_generation here_;
  bool reopening_ = false;  ///< the lane is closed and will be opened again
  bool used_ = false;       ///< the learner has handled hooks
  bool torn_ = false;       ///< the learner cannot return to the last point
  std::string digest_;      ///< of the state at the last point
  std::uint64_t failures_ = 0;
  std::vector<failure> late_;
};

}  // namespace troupe
