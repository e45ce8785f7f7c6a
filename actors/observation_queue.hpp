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

/// Thread-safe. Bound: `limit` observations. At the bound the oldest progress goes first, then the
/// oldest hook; metrics and lifecycle stay (they are few: one per logged step and event). What went
/// is counted.
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
  void make_room();

  const bool wants_hooks_;
  const std::size_t limit_;
  mutable std::mutex guard_;
  std::deque<observation_ptr> waiting_;
  dropped_observations dropped_;
};

}  // namespace troupe
