// What a report of a run shows besides the module's own metrics.
#pragma once

#include "troupe/callbacks.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe {

/// Logs, at the steps that report values:
/// - `run/learning_rate` of the step; of more than one group of parameters also
///   `run/learning_rate_2` and so on, over all optimizers;
/// - `run/samples_per_second` of all ranks since the report before, or the begin of the epoch;
/// - `run/process_memory_mib`, resident, the most of all ranks' processes.
class report_monitor : public callback {
public:
  /// `now`: see clock_function.
  explicit report_monitor(clock_function now = {}) : now_(std::move(now)) {}
  void on_train_epoch_start(module& m, std::int64_t epoch) override;
  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  void on_train_batch_end(module& m, const step_output& output, const batch& b,
                          std::int64_t index) override;
  bool reads_gradients() const override { return false; }

private:
  void begin(const module& m);

  clock_function now_;
  clock_function clock_;
  std::chrono::nanoseconds since_{-1};  // negative: not begun
  std::int64_t samples_ = 0;            // of this rank, since `since_`
  std::int64_t step_ = -1;              // of the newest batch
  // Of that step, by group; none: LibTorch knows none.
  std::vector<std::optional<double>> rates_;
};

}  // namespace troupe
