// The messages between a supervisor and a rank in another process. Orders go to the rank and
// reports to the supervisor, in the order sent and without repetition. A lost link ends the rank:
// both sides learn of the loss and drop later messages.
#pragma once

#include "messages/control.hpp"

#include <string>
#include <variant>
#include <vector>

namespace troupe {

/// How the communicator of the rank's process finds the other ranks: the name of its kind, and an
/// address whose text only the adapter understands.
struct rendezvous_info {
  std::string communicator;
  std::string address;
  friend bool operator==(const rendezvous_info&, const rendezvous_info&) = default;
};

/// Remote rank to the rank's process, once per rank that lives there: which rank it is, and all
/// that the process needs to start it. Another one for the same incarnation is ignored. Late or
/// lost: the supervisor's forming deadline passes, and the generation closes with the rank named.
struct rank_spec {
  job_id job;
  std::int32_t rank = 0;
  incarnation_id incarnation;
  stage purpose = stage::train;
  trainer_options options;
  std::string resume;
  /// The program's own text, from which the process makes its recipe (`job::recipe_text`).
  std::string recipe;
  /// Of the job's recipe (learner_recipe::identity); empty: unknown. A process that makes another
  /// one fails its ranks.
  std::string identity;
  rendezvous_info meets;
  bool checkpoints = false;  ///< the job has a checkpointer, so rank 0 sends snapshots
  bool watched = false;      ///< the job has observers
  bool hooks = false;        ///< some observer receives `seen::hook`
  bool traced = false;       ///< send `hook_entered`
  snapshot_ptr initial;
  value arguments;  ///< of a remote function (`job::arguments`)
};
/// Supervisor to the process of a spare: load what ranks of this job will need. A rank_spec may
/// follow at any time. Late or lost: the first rank loads it.
struct warm_up {
  trainer_options options;
  std::string recipe;
};
/// Rank's process to the observers in the supervisor's process. Progress and hooks are dropped
/// before the link when the observers' queue is full or the link is half full. One
/// `dropped_observations` after the last observation says how many were dropped.
struct observed {
  observation what;
};
/// Rank's process to the job's trace: the lane enters a hook. Answered by `hooks_traced`.
struct hook_entered {
  std::int32_t rank = 0;
  hook what;
};
/// The job's trace to the rank's process: so many more of its hooks are in the trace. Lanes wait
/// while too many are not (trace_gate). `why`: the trace cannot be written, which the next hook
/// throws. Late: the lanes wait longer. Lost: only with the link.
struct hooks_traced {
  std::uint64_t count = 0;
  std::string why;
};
/// Rank's process to the remote rank, last: the actor of that rank has ended, and all its reports
/// were sent before. `why` is empty when it ended by itself. When no other rank is to live there,
/// the link is closed. Lost: the end of the process is then reported as a failure.
struct rank_ended {
  incarnation_id rank;
  std::string why;
};
/// Rank's process to the supervisor, first: it can run ranks now. Again, with `warm`, once it has
/// done what a warm_up asks for. Late or lost: as rank_spec, and with shrink a spare is not taken.
struct process_ready {
  bool warm = false;
};
/// Rank's process to the supervisor: it was asked to end (SIGTERM), and its ranks should go on
/// elsewhere. Lost: only with the process.
struct process_leaves {
  std::string why;
};

using link_message =
    std::variant<rank_spec, form_generation, activate_generation, propose_stop, stop_at,
                 close_generation, tear_down, prepared, step_done, stop_vote, rank_finished,
                 rank_failed, queue_value, closed_generation, rank_busy, torn_down,
                 write_checkpoint, observed, dropped_observations, hook_entered, rank_ended,
                 process_ready, process_leaves, warm_up, hooks_traced>;

}  // namespace troupe
