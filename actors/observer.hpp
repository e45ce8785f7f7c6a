// The observer actor: one observer behind its bounded queue.
#pragma once

#include <memory>
#include <mutex>
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

/// All observers of a job. A value; copies notify the same observers. Thread-safe.
class observer_list {
public:
  void add(listed_observer member) { members_.push_back(std::move(member)); }
  const std::vector<listed_observer>& members() const { return members_; }
  bool wants_hooks() const;
  /// Puts `what` into each queue, and wakes observers whose queue was empty.
  void notify(observation what) const;
  /// A list of the same observers that `close` closes for one sender alone.
  observer_list for_sender() const;
  /// When it returns, nothing that this sender's list or a copy of it notifies reaches an observer.
  void close() const;
  /// Counts what was dropped on its way here, as if each queue had dropped it.
  void add_dropped(const dropped_observations& elsewhere) const;

private:
  struct gate {
    std::mutex guard;
    bool closed = false;
  };

  std::vector<listed_observer> members_;
  std::shared_ptr<gate> gate_;  ///< of one sender; null: never closed
};

/// Starts an observer on the control threads: for one that never waits, and for simulations. Its
/// exception is reported once to `supervisor` (as `late` of `flushed`), and it gets no further
/// observation.
listed_observer spawn_observer(caf::actor_system& system, actor_error_handler trouble,
                               const observer_factory& make, supervisor_actor supervisor);
/// As spawn_observer, with a thread of the observer's own: a program's observer may wait.
listed_observer spawn_observer_on_thread(caf::actor_system& system, actor_error_handler trouble,
                                         const observer_factory& make, supervisor_actor supervisor);
/// As spawn_observer, with a queue of at most `limit` observations.
listed_observer spawn_observer_with_queue(std::size_t limit, caf::actor_system& system,
                                          actor_error_handler trouble, const observer_factory& make,
                                          supervisor_actor supervisor);

}  // namespace troupe
