// The files of a run's folder, as another program reads them: also while the run writes them, and
// after it was killed.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::program {

/// Gets what a reader has to know of a file that is missing, damaged or half written.
using note_taker = std::function<void(const std::string&)>;

/// Throws user_error (bad_configuration) unless `folder` has a file of a run.
void check_holds_run(const std::string& folder);

/// The object in result.json. Null: the run has not ended, or the file is damaged, with a note.
nlohmann::ordered_json read_result(const std::string& folder, const note_taker& note);

/// The last event of events.jsonl that is whole, or null.
nlohmann::ordered_json last_event(const std::string& folder);

/// The events of a run, each with `time`, `event`, `rank`, `generation`, `step` and `details`, of
/// the types that event_log writes.
struct run_events {
  std::vector<nlohmann::ordered_json> list;
  std::size_t left_out = 0;
};
/// At most `most` events. Of more, written checkpoints are left out evenly; if that is not enough,
/// the first and the last events stay. Lines that are no events are counted in a note.
run_events read_events(const std::string& folder, std::size_t most, const note_taker& note);

/// A metric over steps. A value that is not finite is null.
struct metric_points {
  std::string name;
  std::vector<std::int64_t> step, epoch;
  std::vector<double> value;
  std::size_t points = 0;  ///< in the file
};
/// The metrics of metrics.csv in the order of their columns, with at most `most` points each. Of
/// more points, the smallest and the largest one of each part of the run stay.
std::vector<metric_points> read_curves(const std::string& folder, std::size_t most,
                                       const note_taker& note);

/// `running`, what result.json says, `unknown`: it cannot be read, or `interrupted`: there is none,
/// because the program was killed. `running` and `result`: what was found before, in this order.
std::string state_of_run(const std::string& folder, bool running,
                         const nlohmann::ordered_json& result);

}  // namespace troupe::program
