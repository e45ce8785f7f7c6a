// What crosses a process border between a supervisor and a rank that lives in a process of its own.
// Orders go to the rank, reports to the supervisor, in the order in which they were sent; nothing
// is repeated. A link that is lost ends the rank: each side learns it and drops what comes later.
#pragma once

#include "messages/control.hpp"

#include <string>
#include <variant>
#include <vector>

namespace troupe {

/// How the communicator of the rank's process finds the others: the name of its kind and what that
/// kind needs to know. `address` is text of the adapter's own.
struct rendezvous_info {
  std::string communicator;
  std::string address;
  friend bool operator==(const rendezvous_info&, const rendezvous_info&) = default;
};

/// Supervisor's side to the rank's process, first and once: who it is and all it needs to bring its
/// rank to life. Late: the supervisor's forming deadline names the rank.
struct rank_spec {
  job_id job;
  std::int32_t rank = 0;
  incarnation_id incarnation;
  stage purpose = stage::train;
  trainer_options options;
  std::string resume;
  /// Text of the program's own, from which its process makes the recipe (`job::recipe_text`).
  std::string recipe;
  rendezvous_info meets;
  bool checkpoints = false;  ///< somebody writes snapshots: rank 0 is to send them
  bool watched = false;      ///< somebody hears observations
  bool hooks = false;        ///< somebody hears `seen::hook`
  bool traced = false;       ///< send `hook_entered`
  snapshot_ptr initial;
};
/// Rank's process to the observers on the supervisor's side. Progress and hooks may be dropped, in
/// front of the link or at a half-full one: how many is said by one `dropped_observations` behind
/// the last of them.
struct observed {
  observation what;
};
/// Rank's process to the trace: the lane enters a hook.
struct hook_entered {
  std::int32_t rank = 0;
  hook what;
};
/// Rank's process to the supervisor's side, last: the rank's actor has ended, everything it said is
/// sent. `why` is empty when it ended by itself. Answered by closing the link.
struct rank_ended {
  std::string why;
};

using link_message =
    std::variant<rank_spec, form_generation, activate_generation, propose_stop, stop_at,
                 close_generation, tear_down, prepared, step_done, stop_vote, rank_finished,
                 rank_failed, queue_value, closed_generation, rank_busy, torn_down,
                 write_checkpoint, observed, dropped_observations, hook_entered, rank_ended>;

}  // namespace troupe
