// events.jsonl of a run's folder.
#pragma once

#include "backends/observer.hpp"
#include "backends/telemetry/line_file.hpp"

#include <chrono>
#include <functional>
#include <string>

namespace troupe {

/// The wall clock, for people: it dates what is written and orders nothing.
using wall_clock = std::function<std::chrono::system_clock::time_point()>;

/// `2026-11-21T07:46:01.123Z`
std::string utc(std::chrono::system_clock::time_point when);

/// Adds one JSON line per lifecycle event: `{"time":"2026-11-21T07:46:01.123Z","event":
/// "checkpoint_written","rank":null,"generation":1,"step":937,"details":{"path":"..."}}`. Undefined
/// numbers are null. A file that is there is gone on with: a resumed run has one history.
class event_log : public observer {
public:
  /// Throws user_error (bad_configuration) when `path` can not be written.
  event_log(std::string path, wall_clock now);
  void on(const observation& what) override;
  /// Notes observations that were dropped, as event `observations_dropped`.
  void finish(std::uint64_t dropped) override;

private:
  void add(const seen::lifecycle& what);

  line_file file_;
  wall_clock now_;
};

}  // namespace troupe
