// What a rank does with what it hears: events in, actions out. A regular value around the fit
// machine, without CAF, threads or clocks; actors/rank.cpp carries out what it says.
//
// A rank opens its communicator when a generation forms, begins its fit when it is active, and
// hands runs of hooks to its lane one at a time. A run that fails is reported at once and the
// communicator aborted, so that peers that wait are released before the supervisor has decided.
// When the generation closes, on_exception runs as soon as the lane is free; when the rank is taken
// down, teardown runs and the lane ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "actors/fit_machine.hpp"
#include "actors/time_knob.hpp"
#include "messages/control.hpp"

namespace troupe {

namespace ranks {

// --- events (besides the supervisor's messages) --------------------------------------------------

/// The communicator of the forming generation is open, or could not be opened.
struct opened {
  std::optional<failure> why_not;
};
/// The lane answered a run.
struct answered {
  fence at;
  std::uint32_t handled = 0;
  hook_outcome outcome;
  std::optional<failure> what;  ///< when outcome.word == failed
};
/// The lane has ended; `last` when its learner threw on the way out.
struct lane_ended {
  std::optional<failure> last;
};
/// A look at the lane: `waits` while it is inside a collective.
struct looked {
  bool busy = false;
  bool waits = false;
  std::string_view hook;  ///< its name, which stays
  std::int64_t step = undefined;
  std::chrono::nanoseconds since{0};
};

using event = std::variant<form_generation, activate_generation, propose_stop, stop_at,
                           close_generation, tear_down, opened, answered, lane_ended, looked>;

// --- actions -------------------------------------------------------------------------------------

/// Open a communicator and bind it to the lane; then `opened`.
struct open {
  generation_id generation;
  std::int32_t world = 1;
};
struct submit {
  hook_run run;
};
struct abort_communicator {
  std::string why;
};
/// Set (or clear) the lane's attention word.
struct attend {
  bool generation_closed = false;
};
struct close_lane {};
/// Tell the supervisor.
struct finished {
  fence at;
  loop_state loop;
  stop_reason why = stop_reason::none;
};
struct failed {
  fence at;
  failure what;
};
struct torn {
  fence at;
  std::vector<failure> late;
};
using report = std::variant<prepared, step_done, stop_vote, finished, failed, closed_generation,
                            rank_busy, torn>;
/// Tell the observers.
struct show {
  observation what;
};
/// The rank is over: its actor ends.
struct end {};

using action =
    std::variant<open, submit, abort_communicator, attend, close_lane, report, show, end>;

enum class phase : std::uint8_t {
  waiting,   ///< for a generation
  opening,   ///< its communicator
  prepared,  ///< for the other ranks
  active,    ///< fitting
  finished,  ///< fitted; the others may not be
  failed,    ///< reported, waiting for the generation to close
  closing,   ///< on_exception is to run or runs
  closed,    ///< waiting to be taken down
  tearing,   ///< teardown is to run or runs
  ending,    ///< the lane is to end
  gone,
};
std::string_view to_string(phase p);

}  // namespace ranks

/// Who a rank is and what it is to do.
struct rank_plan {
  job_id job;
  std::int32_t rank = 0;
  incarnation_id incarnation;
  shared_value<fit_plan> fit;  ///< of all ranks
  deadlines limits;
  friend bool operator==(const rank_plan&, const rank_plan&) = default;
};

/// See the top of the file. Every event in every phase is defined; what carries another fence
/// changes nothing.
class rank_machine {
public:
  explicit rank_machine(rank_plan plan);

  std::vector<ranks::action> on(const ranks::event& what);
  /// The same for ranks::answered, of which it wants no copy; added to `out`.
  void answered(const ran& what, std::vector<ranks::action>& out);

  ranks::phase phase() const { return phase_; }
  const fit_machine& fit() const { return fit_; }
  const fence& mine() const { return mine_; }
  /// The id of the next failure of this life. The actor gives it to a failure before it feeds the
  /// failure to the machine, so that it can keep the exception by the id. The machine numbers a
  /// failure without an id itself.
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
  template <class Tell>
  void feed_by(Tell tell, actions& out);
  void carry_out(fit_action what, actions& out);
  void submit(std::vector<hook> hooks, actions& out);
  void go_on_closing(actions& out);
  void fail(failure what, actions& out);
  void number(failure& what);
  void repeat_report(actions& out);
  fence stamped(std::int64_t step) const;

  rank_plan plan_;
  fence mine_;
  std::int32_t world_ = 1;
  ranks::phase phase_ = ranks::phase::waiting;
  fit_machine fit_;
  std::vector<fit_action> todo_;  ///< empty between events: only its memory is kept
  std::optional<sequence_id> in_flight_;
  failure first_;                             ///< the first cause, once the generation closes
  stop_reason ended_by_ = stop_reason::none;  ///< of the fit, once finished
  failure failed_with_;                       ///< once failed
  bool orderly_ = true;
  bool tear_down_asked_ = false;
  bool overdue_ = false;  ///< the hook in flight was reported
  std::uint64_t failures_ = 0;
  std::vector<failure> late_;
};

}  // namespace troupe
