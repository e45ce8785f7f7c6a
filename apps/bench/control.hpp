// Measures the cost of the control plane: the ranks' hooks do nothing, so only machines, lanes and
// messages remain.
#pragma once

#include "apps/bench/timing.hpp"

#include <cstdint>
#include <functional>

namespace troupe::program {

struct control_question {
  std::int32_t ranks = 2;
  std::int64_t steps = 5000;  ///< measured, after a tenth of them as warm-up; at least 10
  int rounds = 5;
  int throws = 20;
  /// Allocations of the process so far; empty: they are not counted.
  std::function<std::int64_t()> allocations;
};

/// Times in microseconds. `machine` and `hooks` are parts of one rank's step, measured alone in one
/// thread. The rest of a step is spent on messages between threads and on waking threads.
struct control_figures {
  timing step;          ///< wall time of a step, all ranks side by side
  timing processor;     ///< processor time of a step, per rank
  timing machine;       ///< of the fit machine
  timing hooks;         ///< of the lane's loop over the hooks
  double messages = 0;  ///< processor time that is neither
  std::int64_t hook_count = 0;
  double allocations = -1;  ///< per step and rank; negative: not counted
  timing throw_to_caller;   ///< from a throw in the last rank to the caller having it
  double throw_to_caller_worst = 0;
};
control_figures bench_control(const control_question& what);
/// `machine`, `hooks` and `hook_count` alone.
control_figures bench_hooks(const control_question& what);

}  // namespace troupe::program
