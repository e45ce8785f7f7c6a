// The observer port: progress lines, loggers, a user's own.
#pragma once

#include "troupe/observation.hpp"

#include <functional>
#include <memory>

namespace troupe {

/// Called by one observer actor, one observation at a time, in order per sender. What it throws is
/// reported once as a lifecycle event and ends the observer, never the job.
class observer {
public:
  virtual ~observer() = default;
  /// Whether it wants `seen::hook`s: they cost a message per hook and rank.
  virtual bool wants_hooks() const { return false; }
  virtual void on(const observation& what) = 0;
  /// The job has ended and no observation will follow: flush. `dropped` observations did not fit
  /// its queue.
  virtual void finish(std::uint64_t dropped) { (void)dropped; }
};

/// Makes a job's observer when the job starts.
using observer_factory = std::function<std::unique_ptr<observer>()>;

}  // namespace troupe
