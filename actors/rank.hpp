// The rank actor: a thin shell around rank_machine and a lane. It never waits.
#pragma once

#include <functional>
#include <memory>

#include "actors/observer.hpp"
#include "actors/rank_machine.hpp"
#include "actors/spawn.hpp"
#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

namespace troupe {

/// Everything that the actor of a rank needs.
struct rank_setup {
  rank_plan plan;
  std::shared_ptr<const job> what;
  ports world;
  std::shared_ptr<communicator_backend> communicators;  ///< the one chosen for the job
  supervisor_actor supervisor;
  checkpointer_actor checkpointer;  ///< may be invalid: no files
  observer_list observers;
  /// Shows reduced values in place of `observers`, before any later message to the supervisor. May
  /// be null.
  std::function<void(const seen::metrics&)> show;
  std::int32_t process = 0;  ///< number of the process that the rank is to live in
};

/// Spawns a rank. The rank ends when it is torn down, when it receives an exit message, or when its
/// supervisor is gone. In the last two cases it aborts its communicator and abandons its lane.
rank_actor spawn_rank(caf::actor_system& system, actor_error_handler trouble, rank_setup setup);

}  // namespace troupe
