// The supervisor actor: carries out the actions of supervisor_machine, and collects the outcome for
// the caller.
#pragma once

#include <functional>
#include <memory>

#include "actors/job_processes.hpp"
#include "actors/rank.hpp"
#include "actors/spawn.hpp"
#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

namespace troupe {

/// Starts the checkpointer of the job `id`.
using spawn_checkpointer_fn = std::function<checkpointer_actor(
    caf::actor_system& system, actor_error_handler trouble, job_id id, const job& what,
    std::shared_ptr<storage> files, supervisor_actor supervisor)>;

/// Starts one incarnation of a rank. Returns the rank itself, or a proxy for a rank in another
/// process or on another host, which ends when that rank is gone. Null: the rank could not be
/// started, and the supervisor was sent a rank_failed that says so.
using spawn_rank_fn = std::function<rank_actor(caf::actor_system& system,
                                               actor_error_handler trouble, rank_setup setup)>;

/// Starts an observer with its queue.
using spawn_observer_fn =
    std::function<listed_observer(caf::actor_system& system, actor_error_handler trouble,
                                  const observer_factory& make, supervisor_actor supervisor)>;

struct supervisor_setup {
  job_id id;
  job what;
  ports world;
  loop_state resumed;  ///< where a fit that resumes begins
  actor_error_handler trouble;
  spawn_checkpointer_fn spawn_checkpointer;  ///< used when the job has a run folder
  spawn_rank_fn bring_rank = spawn_rank;
  /// The processes of the job's ranks; null if the ranks are threads.
  std::shared_ptr<job_processes> processes;
  std::int32_t process_count = 0;  ///< that the job begins with
  spawn_observer_fn bring_observer = spawn_observer_on_thread;
  /// Called with every lifecycle event while the supervisor handles a message. Must not wait. May
  /// be empty.
  std::function<void(const seen::lifecycle&)> announced;
  /// Called exactly once, on a thread of the actor system or on the one that destroys it. Must not
  /// wait.
  std::function<void(job_outcome)> complete;
};

/// Checks the job (a `user_error` in its options completes it at once) and spawns its supervisor.
/// The job starts on `begin_job`. If the supervisor itself ends early, the job completes as failed
/// with `internal_error`, which has the text of the exception that ended it, and the ranks end.
supervisor_actor spawn_supervisor(caf::actor_system& system, supervisor_setup setup);

}  // namespace troupe
