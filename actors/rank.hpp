// The rank actor: a thin shell around rank_machine and a lane. It never waits.
#pragma once

#include <memory>

#include "actors/observer.hpp"
#include "actors/rank_machine.hpp"
#include "actors/spawn.hpp"
#include "troupe/job.hpp"
#include "troupe/ports.hpp"

namespace troupe {

/// What a rank's actor is given.
struct rank_setup {
  rank_plan plan;
  std::shared_ptr<const job> what;
  ports world;
  std::shared_ptr<communicator_backend> communicators;  ///< the one chosen for the job
  supervisor_actor supervisor;
  checkpointer_actor checkpointer;  ///< may be invalid: no files
  observer_list observers;
};

/// Brings a rank to life. It ends when it is torn down, when it is told to exit, or when its
/// supervisor is gone; in the latter cases its communicator is aborted and its lane left to itself.
rank_actor spawn_rank(caf::actor_system& system, actor_error_handler trouble, rank_setup setup);

}  // namespace troupe
