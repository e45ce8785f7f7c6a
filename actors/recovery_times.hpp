// How long the parts of a recovery take, for job_outcome::generations.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "actors/supervisor_events.hpp"
#include "troupe/outcome.hpp"

namespace troupe {

/// Reads the clock at the supervisor's own events. Used by one actor.
class recovery_times {
public:
  using time = std::chrono::nanoseconds;

  void see(const seen::lifecycle& what, time now);
  /// A rank is prepared, after a transfer of so many seconds.
  void healed(double seconds);
  /// A step is committed.
  void committed(time now);
  /// Adds the records of `all` to the outcome, with their times.
  void put_into(job_outcome& outcome, const std::vector<supervision::generation_end>& all) const;

private:
  std::map<std::uint64_t, generation_record::times> of_;  // by generation
  std::uint64_t generation_ = 0;                          // the newest one
  std::optional<time> failed_, closing_, closed_, active_;
  double healing_ = 0;
};

}  // namespace troupe
