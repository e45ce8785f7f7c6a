// The observer port: progress displays, loggers, a program's own. An observer only watches; it
// cannot change or delay a run.
#pragma once

#include "troupe/observation.hpp"

#include <functional>
#include <memory>

namespace troupe {

/// Called by one thread at a time, not always the same one, one observation at a time. Observations
/// of one sender arrive in order. They wait in a bounded queue: a slow observer loses progress
/// first, then hooks. What it throws is reported once as a lifecycle event (`trouble`) and ends the
/// observer, never the job.
class observer {
public:
  virtual ~observer() = default;
  /// Whether it wants `seen::hook` and `seen::collective`: that costs one message for each of them
  /// and each rank.
  virtual bool wants_hooks() const { return false; }
  /// One observation. While it runs others wait in the bounded queue.
  virtual void on(const observation& what) = 0;
  /// The job has ended and no observation follows: flush. The queue had no room for `dropped`
  /// observations.
  virtual void finish(std::uint64_t dropped) { (void)dropped; }
};

/// Makes a job's observer when the job starts.
using observer_factory = std::function<std::unique_ptr<observer>()>;

}  // namespace troupe
