#include "backends/torch/process_modes.hpp"

#include <ATen/Context.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <array>
#include <mutex>

namespace troupe {

namespace {

using torch::autograd::AnomalyMode;

// How many ranks want each switch, and what the program had set before the first of them.
struct wishes {
  std::mutex guard;
  int anomaly = 0;
  bool anomaly_before = false;
  bool nan_before = true;
  std::array<int, 3> deterministic{};  // by deterministic_kind
  bool deterministic_before = false;
  bool warn_before = false;
  std::array<int, 2> benchmark{};  // off, on
  bool benchmark_before = false;

  int strict() const { return deterministic[1] + deterministic[2]; }

  void set_deterministic() const {
    auto& context = at::globalContext();
    if (strict() == 0)
      context.setDeterministicAlgorithms(deterministic_before, warn_before);
    else
      context.setDeterministicAlgorithms(true, deterministic[1] == 0);
  }
  void set_benchmark() const {
    const bool some = benchmark[0] + benchmark[1] > 0;
    at::globalContext().setBenchmarkCuDNN(some ? benchmark[0] == 0 : benchmark_before);
  }
};

wishes& of_process() {
  static wishes all;
  return all;
}

// A deterministic run must not choose its algorithms by their speed.
std::optional<bool> benchmark_of(const trainer_options& o) {
  if (o.benchmark || o.deterministic == deterministic_kind::off) return o.benchmark;
  return false;
}

}  // namespace

process_modes::process_modes(const trainer_options& wanted)
    : anomaly_(wanted.detect_anomaly),
      deterministic_(wanted.deterministic),
      benchmark_(benchmark_of(wanted)) {
  auto& all = of_process();
  const std::lock_guard lock{all.guard};
  if (anomaly_ && all.anomaly++ == 0) {
    all.anomaly_before = AnomalyMode::is_enabled();
    all.nan_before = AnomalyMode::should_check_nan();
    AnomalyMode::set_enabled(true);
  }
  if (deterministic_ != deterministic_kind::off) {
    if (all.strict() == 0) {
      all.deterministic_before = at::globalContext().deterministicAlgorithms();
      all.warn_before = at::globalContext().deterministicAlgorithmsWarnOnly();
    }
    ++all.deterministic.at(static_cast<std::size_t>(deterministic_));
    all.set_deterministic();
  }
  if (benchmark_) {
    if (all.benchmark[0] + all.benchmark[1] == 0)
      all.benchmark_before = at::globalContext().benchmarkCuDNN();
    ++all.benchmark.at(*benchmark_ ? 1 : 0);
    all.set_benchmark();
  }
}

process_modes::~process_modes() {
  auto& all = of_process();
  const std::lock_guard lock{all.guard};
  if (anomaly_ && --all.anomaly == 0) AnomalyMode::set_enabled(all.anomaly_before, all.nan_before);
  if (deterministic_ != deterministic_kind::off) {
    --all.deterministic.at(static_cast<std::size_t>(deterministic_));
    all.set_deterministic();
  }
  if (benchmark_) {
    --all.benchmark.at(*benchmark_ ? 1 : 0);
    all.set_benchmark();
  }
}

}  // namespace troupe
