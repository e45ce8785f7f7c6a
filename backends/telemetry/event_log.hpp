// events.jsonl of a run's folder.
#pragma once

#include "backends/telemetry/line_file.hpp"
#include "troupe/observer.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace troupe {

/// The wall clock, for display only: no order is derived from it.
using wall_clock = std::function<std::chrono::system_clock::time_point()>;

/// `2026-11-21T07:46:01.123Z`
std::string utc(std::chrono::system_clock::time_point when);

/// Adds one JSON line per lifecycle event: `{"time":"2026-11-21T07:46:01.123Z","event":
/// "checkpoint_written","rank":null,"generation":1,"step":937,"details":{"path":"..."}}`. Undefined
/// numbers are null. Appends to an existing file, so that a resumed run has one history. An event
/// that cannot be written (a full disk) is lost as a whole. When there is space again, the event
/// `events_lost` with their number precedes the next one.
class event_log : public observer {
public:
  /// Throws user_error (bad_configuration) if `path` cannot be written.
  event_log(std::string path, wall_clock now);
  /// Throws std::system_error if the event is lost; later events may still be written.
  void on(const observation& what) override;
  /// Writes an event `observations_dropped`.
  void finish(std::uint64_t dropped) override;

private:
  void add(const seen::lifecycle& what);
  std::string line_of(const seen::lifecycle& what) const;

  line_file file_;
  wall_clock now_;
  std::uint64_t lost_ = 0;  // not written, and not yet reported
};

}  // namespace troupe
