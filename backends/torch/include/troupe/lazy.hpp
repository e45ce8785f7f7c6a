// What LibTorch's lazy tensors did in this process: graphs, compilations, and operators that no
// graph can hold. For finding out why a fit on the accelerator `lazy` is slow.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "troupe/callback.hpp"

namespace troupe {

/// Since the process started. All of its ranks count together.
struct lazy_counts {
  std::int64_t step_marks = 0;    ///< ends of steps, and reads by the host
  std::int64_t graphs = 0;        ///< that were run
  std::int64_t compilations = 0;  ///< graphs that had no equal before, and were compiled
  /// Operators that ran one by one on the host, by name (`aten::...`), with their number of calls.
  /// `aten::_local_scalar_dense` is the read of a single number.
  std::map<std::string, std::int64_t> fallbacks;
};

/// Thread-safe. Never waits for a device.
lazy_counts counts_of_lazy();
/// The counts, LibTorch's own counters, and the operators of graphs that have not run yet. For
/// people: the format may change. Thread-safe where no rank of the process is in a step.
std::string report_of_lazy();

/// What lazy_report takes.
struct lazy_report_options {
  std::string path;  ///< a file, which is replaced
};

/// `debug` of Lightning's XLAStrategy. At the end of each epoch it logs `lazy/step_marks`,
/// `lazy/graphs`, `lazy/compilations` and `lazy/fallbacks`: the counts of the process that has the
/// most. At the end of training rank 0 writes report_of_lazy() to `path`, while no rank is in a
/// step. Other accelerators are refused with a user_error, and so is a file that cannot be written.
class lazy_report : public callback {
public:
  /// Writes where `how` says.
  explicit lazy_report(lazy_report_options how);
  void setup(module& m, stage purpose) override;
  void on_train_epoch_end(module& m, std::int64_t epoch) override;
  void on_train_end(module& m) override;
  bool reads_gradients() const override { return false; }

private:
  lazy_report_options how_;
};

}  // namespace troupe
