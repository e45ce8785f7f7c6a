// The bounded queue in front of one observer: what ranks and supervisor put in, its actor takes
// out.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "messages/control.hpp"

namespace troupe {

/// Thread-safe. Bound: while `limit` observations wait, each new one drops the oldest progress, or
/// without progress the oldest hook. What went is counted. Metrics and lifecycle are never dropped
/// and have no bound: an observer that does not return holds one for each logged step and event.
/// Each call but `take` takes a constant time.
class observation_queue {
public:
  static constexpr std::size_t limit_default = 4096;
  explicit observation_queue(bool wants_hooks, std::size_t limit = limit_default)
      : wants_hooks_(wants_hooks), limit_(limit) {}

  bool wants_hooks() const { return wants_hooks_; }
  /// True when the actor is to be woken: the queue was empty.
  bool push(observation_ptr what);
  /// All that is there, in order.
  std::vector<observation_ptr> take();
  /// The oldest; null when there is none.
  observation_ptr take_one();
  bool empty() const;
  /// Counts what was on its way here and dropped before; hooks if it wants them.
  void add_dropped(dropped_observations elsewhere);
  dropped_observations dropped() const;

private:
  struct entry {
    std::uint64_t number = 0;  // in the order of `push`
    observation_ptr what;
  };
  using entries = std::deque<entry>;

  std::size_t size() const { return progress_.size() + details_.size() + kept_.size(); }
  entries& kind_of(const observation& what);
  observation_ptr oldest();
  void make_room();

  const bool wants_hooks_;
  const std::size_t limit_;
  mutable std::mutex guard_;
  std::uint64_t newest_ = 0;
  entries progress_;  // dropped first
  entries details_;   // hooks and collectives
  entries kept_;      // metrics and lifecycle
  dropped_observations dropped_;
};

}  // namespace troupe
