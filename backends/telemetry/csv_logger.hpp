// metrics.csv of a run's folder.
#pragma once

#include "backends/telemetry/line_file.hpp"
#include "troupe/observer.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe {

/// Writes reduced values as they become known: columns `step`, `epoch`, then one per metric in the
/// order in which they first came; a row per observation, empty where it has no value. A metric
/// that is new rewrites the file with one more column, by rename: readers see whole files only. A
/// file that is there is gone on with. At most 512 columns: a further name ends the logger (the
/// job goes on), because a name per step is a mistake that would cost the square of it.
class csv_logger : public observer {
public:
  /// Throws user_error (bad_configuration) when `path` can not be written or is no such file.
  explicit csv_logger(std::string path);
  ~csv_logger() override;
  void on(const observation& what) override;

private:
  void widen(const metrics& logged);

  std::string path_;
  std::vector<std::string> columns_;
  std::unique_ptr<line_file> file_;
};

/// Drops the rows of steps beyond `step` from a metrics.csv, and those of a test behind it (a run
/// tests at its end, and it has not ended), by rename; one that is not there is fine. What a
/// resumed run does before it goes on. Throws user_error (bad_configuration).
void cut_metrics(const std::string& path, std::int64_t step);

}  // namespace troupe
