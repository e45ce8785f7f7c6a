// Events, actions and phases of the supervisor machine (actors/supervisor_machine.hpp). The edges
// that matter:
//
// phase     event                          next phase: actions
// idle      begin                          forming: start_rank, form_generation, arm
// forming   prepared, from all             active: commit, activate_generation, arm
// active    step_done                      active: commit, once all members hold the step
// active    request_stop, a change         active: propose_stop
// active    stop_vote, from all            active: stop_at, with the highest vote
// active    step_done, all have paused     closing: close_generation; the membership changes
// active    rank_finished, from all        tearing: tear_down, orderly
// forming,  a failure                      closing: close_generation, at once for a first cause,
//   active                                   after a wait for one that only follows
// closing   closed_generation, from all    forming: start_rank for lost and moved ranks,
//                                            form_generation; tearing if the job is over: tear_down
// tearing   rank_down, process_changed     flushing_checkpointer: flush_checkpointer, once all end
// flushing_checkpointer  request_abort       the same: arm, with the limit of a teardown
// flushing_checkpointer  checkpointer_done   flushing_observers: flush_observers
// flushing_observers     observers_done      done: complete
//
// docs/architecture.md says what each phase does when its deadline passes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "actors/membership.hpp"
#include "messages/control.hpp"

namespace troupe {

namespace supervision {

/// What the machine knows about the job.
struct rules {
  elastic_options elastic;
  /// Processes that the job begins with; 0: ranks are threads. A rank in a process of its own that
  /// is abandoned does not go on.
  std::int32_t processes = 0;
  /// A launcher placed them (mpirun): none is started after the first ones and their spares.
  bool fixed = false;
  bool has_result = false;  ///< rank 0 brings the caller's result with torn_down
  bool saves = false;       ///< rank 0 saves when the job fails (checkpoint_policy::on_exception)
  friend bool operator==(const rules&, const rules&) = default;
};

// --- events: these and the messages in `event` ---------------------------------------------------

/// The session wants the job to run. One incarnation per rank, distinct, from the entropy port.
struct begin {
  std::vector<incarnation_id> incarnations;
  loop_state resumed;  ///< of the checkpoint that a fit resumes
};
/// The rank's actor is gone, whatever the reason.
struct rank_down {
  std::int32_t rank = 0;
  std::string why;
  incarnation_id incarnation;  ///< 0: the one that the rank has now
};
/// The checkpointer, or the last observer, has finished (or is gone).
struct checkpointer_done {
  std::vector<failure> late;
};
struct observers_done {
  std::vector<failure> late;
};
/// The job has written a checkpoint, which it had come to with this, and it is durable.
struct durable {
  progress at;
};
/// Something other than a rank failed: a checkpoint was not written, an observer threw. With
/// `ends_job` (no checkpoint can be written, or the last one was not) the job fails.
struct trouble {
  failure what;
  bool ends_job = false;
};

/// The machine ignores what only the caller needs in a rank's messages: exceptions, snapshots,
/// figures, results.
using event = std::variant<begin, prepared, step_done, stop_vote, rank_finished, rank_failed,
                           closed_generation, rank_busy, torn_down, rank_down, checkpointer_done,
                           observers_done, durable, trouble, process_changed, request_stop,
                           request_abort, request_scale, deadline_passed>;

// --- actions -------------------------------------------------------------------------------------

/// Start a process for ranks. Emitted only where ranks live in processes of their own.
struct start_process {
  std::int32_t number = 0;
  bool spare = false;  ///< it waits for ranks
  friend bool operator==(const start_process&, const start_process&) = default;
};
/// No further rank is started there: the process ends with the last of its ranks.
struct end_process {
  std::int32_t number = 0;
  friend bool operator==(const end_process&, const end_process&) = default;
};
/// Start this rank in that process.
struct start_rank {
  std::int32_t rank = 0;
  incarnation_id incarnation;
  std::int32_t process = 0;
  friend bool operator==(const start_rank&, const start_rank&) = default;
};
using order = std::variant<form_generation, activate_generation, propose_stop, stop_at,
                           close_generation, tear_down>;
/// Send this to the rank.
struct send {
  std::int32_t rank = 0;
  order what;
};
/// End the actor of this rank and abandon its lane.
struct abandon {
  std::int32_t rank = 0;
};
/// Wake the machine with deadline_passed{id} after `delay`. Older ids are void.
struct arm {
  std::uint64_t id = 0;
  std::chrono::nanoseconds delay{0};
};
struct flush_checkpointer {};
struct flush_observers {};
/// Send this to the observers.
struct announce {
  seen::lifecycle what;
};
/// Every member of the generation holds this many steps. Less than before only where a generation
/// begins at a checkpoint.
struct commit {
  std::int64_t steps = 0;
};
/// A generation that is over.
struct generation_end {
  generation_id generation;
  std::int64_t base_step = 0;
  std::int64_t steps_redone = 0;    ///< finished, and lost with the failure before
  std::int32_t ranks = 0;           ///< processes with ranks; ranks where they are threads
  std::optional<failure> ended_by;  ///< has its `others`; none: see `changed`, or the job ended
  membership_change changed = membership_change::none;
  friend bool operator==(const generation_end&, const generation_end&) = default;
};
/// The last action: the job is over.
struct complete {
  job_outcome::ending status = job_outcome::ending::failed;
  stop_reason why = stop_reason::none;
  loop_state loop;
  generation_id generation;
  std::optional<failure> first;  ///< has its `others`; none: no failure
  std::vector<generation_end> generations;
  std::vector<std::string> survivors;
  std::vector<failure> late;
};

using action = std::variant<start_process, end_process, start_rank, send, abandon, arm,
                            flush_checkpointer, flush_observers, announce, commit, complete>;

enum class phase : std::uint8_t {
  idle,
  forming,
  active,
  closing,
  tearing,
  flushing_checkpointer,
  flushing_observers,
  done
};
std::string_view to_string(phase p);

}  // namespace supervision

}  // namespace troupe
