// Events, actions and phases of the rank machine (actors/rank_machine.hpp). The edges that matter:
//
// phase        event                     next phase: actions
// waiting      form_generation           opening: open
// opening      opened, it has the base   prepared: report
// opening      opened, it lacks it       setting_up: submit the set-up hooks, without peers
// setting_up   answered                  restoring: bind, submit restore_state
// restoring    answered                  prepared: report
// prepared     activate_generation       active: submit the first run
// active       answered                  active: report, submit; after the last finished: report
// any of them  opened, answered: failed  failed: report, abort_communicator
// any of them  close_generation          closing: abort_communicator, submit rewind or on_exception
// closing      answered                  closed: report
// closed       form_generation           opening: open; without the state reopening: close_lane
// reopening    lane_ended                opening: open_lane, open
// closed, ...  tear_down                 tearing: submit teardown, once the lane is free
// tearing      answered                  ending: close_lane
// ending       lane_ended                gone: report, end
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "messages/control.hpp"
#include "messages/lane.hpp"

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
  std::optional<failure> what;  ///< when outcome.verdict == failed
};
/// The lane has ended; `last` when its learner threw on the way out.
struct lane_ended {
  std::optional<failure> last;
};
/// The state of the lane, once per tick. `waits`: it is inside a collective, or may have been until
/// the abort of the communicator, which the supervisor answers.
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

/// Open a communicator, then `opened`. Bind it to the lane, or with `alone` one without peers.
struct open {
  generation_id generation;
  std::int32_t world = 1;
  bool alone = false;
};
/// Bind the open communicator to the lane, after `open` with `alone`.
struct bind {};
/// After `close_lane` and `lane_ended`: open a lane with a new learner.
struct open_lane {};
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
/// Send this to the supervisor. The actor adds what the machine does not know: exceptions,
/// snapshots, figures, results.
using report = std::variant<prepared, step_done, stop_vote, rank_finished, rank_failed,
                            closed_generation, rank_busy, torn_down>;
/// Send this to the observers.
struct show {
  observation what;
};
/// Reduced values became known, the same on all ranks. Rank 0 shows them.
struct row {
  seen::metrics what;
};
/// The rank is over: its actor ends.
struct end {};

using action = std::variant<open, bind, open_lane, submit, abort_communicator, attend, close_lane,
                            report, show, row, end>;

enum class phase : std::uint8_t {
  waiting,     ///< for a generation
  reopening,   ///< its lane, for a new learner
  opening,     ///< its communicator
  setting_up,  ///< a new learner, without peers
  restoring,   ///< the state of the base, with all ranks
  prepared,    ///< for the other ranks
  active,      ///< fitting
  finished,    ///< fitted; other ranks may still train
  failed,      ///< reported, waiting for the generation to close
  closing,     ///< rewind or on_exception is to run or runs
  closed,      ///< waiting for the next generation, or to be taken down
  tearing,     ///< teardown is to run or runs
  ending,      ///< the lane is to end
  gone,
};
std::string_view to_string(phase p);

}  // namespace ranks

}  // namespace troupe
