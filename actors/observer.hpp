// The observer actor: one observer behind its bounded queue.
#pragma once

#include <memory>
#include <vector>

#include "actors/observation_queue.hpp"
#include "actors/spawn.hpp"
#include "troupe/observer.hpp"

namespace troupe {

/// One observer as ranks and supervisor see it.
struct listed_observer {
  std::shared_ptr<observation_queue> queue;
  observer_actor actor;
};

/// All observers of a job. A value; copies speak to the same observers. Thread-safe.
class observer_list {
public:
  void add(listed_observer member) { members_.push_back(std::move(member)); }
  const std::vector<listed_observer>& members() const { return members_; }
  bool wants_hooks() const;
  /// Puts `what` into each queue and knocks where nobody was waiting. Never waits.
  void notify(observation what) const;
  /// Counts what was dropped on its way here, as if each queue had dropped it.
  void add_dropped(const dropped_observations& elsewhere) const;

private:
  std::vector<listed_observer> members_;
};

/// Brings an observer to life. What it throws is said once to `supervisor` (as `late` of `flushed`)
/// and ends its hearing.
listed_observer spawn_observer(caf::actor_system& system, actor_error_handler trouble,
                               const observer_factory& make, supervisor_actor supervisor);
/// As above, behind a queue of at most so many observations.
listed_observer spawn_observer_with_queue(std::size_t limit, caf::actor_system& system,
                                          actor_error_handler trouble, const observer_factory& make,
                                          supervisor_actor supervisor);

}  // namespace troupe
