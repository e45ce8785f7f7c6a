// metrics.csv of a run's folder.
#pragma once

#include "backends/telemetry/line_file.hpp"
#include "troupe/observer.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Writes reduced values as they become known: columns `step`, `epoch`, then one per metric in the
/// order in which they first appeared; one row per observation, with empty fields for missing
/// values. A new metric rewrites the file with one more column, by rename, so that readers see
/// whole files only. Appends to an existing file, but not a row that its newest step has already: a
/// run that is resumed and ends at once reports its last step again. At most 2048 columns, because
/// each new name writes the file anew: later names are left out, and `finish` throws
/// std::length_error with the first of them.
class csv_logger : public observer {
public:
  /// Throws user_error (bad_configuration) if `path` cannot be written or is not such a file.
  explicit csv_logger(std::string path);
  ~csv_logger() override;
  void on(const observation& what) override;
  void finish(std::uint64_t dropped) override;

private:
  void widen(const metrics& logged);

  std::string path_;
  std::vector<std::string> columns_;
  std::set<std::string, std::less<>> known_;  // the columns of metrics
  std::string left_out_;                      // the first name without a column
  std::vector<std::string> newest_;           // rows of the newest step in the file that was opened
  std::unique_ptr<line_file> file_;
};

/// A metric over the rows that have a value of it.
struct metric_series {
  std::string name;
  std::vector<std::int64_t> step, epoch;
  std::vector<double> value;
};
/// What a metrics.csv holds, in the order of its columns.
struct metrics_table {
  std::vector<metric_series> series;
  std::size_t damaged =
      0;             ///< rows that were left out: a field is no number, or there are too many
  bool cut = false;  ///< the last line has no end; it was left out
};
/// Reads the text of a metrics.csv, also of one that is being written or was cut by a crash.
metrics_table parse_metrics(std::string_view text);

/// Removes the rows of steps after `step` from a metrics.csv, and the rows of a test after it (a
/// run tests at its end, and this one has not ended), by rename. Of a test are values whose names
/// are or begin with the word `test`, as in `test/loss` and `test_loss`. A missing file is no
/// error. A resumed run calls this before it starts. Throws user_error (bad_configuration).
void cut_metrics(const std::string& path, std::int64_t step);

}  // namespace troupe
