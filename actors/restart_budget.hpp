// How many failures a job outlives, and how long it rests after one. A part of the supervisor
// machine. docs/elastic.md has the rules.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "troupe/options.hpp"

namespace troupe {

/// A regular value. Times are those of the supervisor's monotonic clock; `committed` is the number
/// of steps that are committed by then.
class restart_budget {
public:
  explicit restart_budget(const elastic_options& rules) : rules_(rules) {}

  /// Restarts that count: `window` has not passed since, or no step was committed since.
  std::int32_t used(std::chrono::nanoseconds now, std::int64_t committed) const;
  std::int32_t left(std::chrono::nanoseconds now, std::int64_t committed) const {
    return rules_.max_restarts - used(now, committed);
  }
  /// A step was committed since the newest failure.
  bool advanced(std::int64_t committed) const { return committed > committed_at_failure_; }
  /// How long the job rests before the next generation.
  std::chrono::nanoseconds rest(std::int64_t committed) const;

  /// A failure ends a generation. It counts as a restart unless `free`.
  void fail(std::chrono::nanoseconds now, std::int64_t committed, bool free);
  /// The next generation begins with so many committed steps.
  void begin(std::int64_t committed) { committed_at_failure_ = committed; }

  /// Processes cannot be started, and the job may wait for them.
  bool may_wait(std::chrono::nanoseconds now) const {
    return !waits_since_ || now - *waits_since_ < rules_.wait;
  }
  bool waits() const { return waits_since_.has_value(); }
  /// True: it did not wait before.
  bool wait(std::chrono::nanoseconds now);
  void end_wait() { waits_since_.reset(); }

  friend bool operator==(const restart_budget&, const restart_budget&) = default;
  std::int64_t committed_at_failure() const { return committed_at_failure_; }

private:
  elastic_options rules_;
  // The time of each restart, and the committed steps.
  std::vector<std::pair<std::chrono::nanoseconds, std::int64_t>> restarts_;
  std::int64_t committed_at_failure_ = -1;
  std::uint32_t fruitless_ = 0;  // generations without a committed step, to the newest one
  std::optional<std::chrono::nanoseconds> waits_since_;
};

}  // namespace troupe
