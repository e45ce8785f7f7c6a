// The supervisor actor: carries out what supervisor_machine decides, and gathers what the caller
// gets.
#pragma once

#include <functional>
#include <memory>

#include "actors/rank.hpp"
#include "actors/spawn.hpp"
#include "troupe/job.hpp"
#include "troupe/ports.hpp"

namespace troupe {

/// Brings the checkpointer of the job `id` to life.
using spawn_checkpointer_fn = std::function<checkpointer_actor(
    caf::actor_system& system, actor_error_handler trouble, job_id id, const job& what,
    std::shared_ptr<storage> files, supervisor_actor supervisor)>;

/// Brings one life of a rank near: the returned handle is the rank itself, or what stands for one
/// that lives in another process or on another host. It goes down when that rank is gone.
using spawn_rank_fn = std::function<rank_actor(caf::actor_system& system,
                                               actor_error_handler trouble, rank_setup setup)>;

/// Brings an observer to life, behind its queue.
using spawn_observer_fn =
    std::function<listed_observer(caf::actor_system& system, actor_error_handler trouble,
                                  const observer_factory& make, supervisor_actor supervisor)>;

struct supervisor_setup {
  job_id id;
  job what;
  ports world;
  actor_error_handler trouble;
  spawn_checkpointer_fn spawn_checkpointer;  ///< used when the job has a run folder
  spawn_rank_fn bring_rank = spawn_rank;
  spawn_observer_fn bring_observer = spawn_observer;
  /// Hears every lifecycle event on the supervisor's turn, as its observers do later: never waits.
  /// Empty: nobody.
  std::function<void(const seen::lifecycle&)> announced;
  /// Called exactly once, on a thread of the actor system or on the one that destroys it: never
  /// waits.
  std::function<void(job_outcome)> complete;
};

/// Checks the job (a `user_error` in its options completes it at once) and brings its supervisor to
/// life; it starts on `begin_job`. If the supervisor itself dies the job completes as failed with
/// `internal_error`, and the ranks end.
supervisor_actor spawn_supervisor(caf::actor_system& system, supervisor_setup setup);

}  // namespace troupe
