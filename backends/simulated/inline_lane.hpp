// Lanes of a simulation: runs are handled later in virtual time, on the simulation's thread, or on
// a thread per lane that runs only while the simulation's thread is blocked.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>

#include "backends/lane.hpp"
#include "backends/simulated/lane_bell.hpp"
#include "backends/simulated/later.hpp"

namespace troupe {

class baton_thread;

/// Virtual time of hooks that happen at one moment, in total.
using hook_cost_fn =
    std::function<std::chrono::nanoseconds(std::int32_t rank, std::span<const hook> what)>;

/// Timing and threads of an inline lane.
struct inline_lane_options {
  later_fn later;
  std::function<std::chrono::nanoseconds()> now;  ///< virtual
  hook_cost_fn cost;                              ///< empty: hooks take no time
  /// Rung when the operation that the learner waits for has ended. Null: the hook is called again
  /// after each `poll`.
  std::shared_ptr<lane_bell> bell;
  std::chrono::nanoseconds poll = std::chrono::microseconds{50};
  /// true: hooks up to the second one that may wait happen at one moment, after the sum of their
  /// costs; hooks after the first wait happen when it has ended. This needs fewer events. false:
  /// each hook (an optimizer_step with its closure) has its own moment.
  bool in_spans = false;
  /// Makes the thread of a learner that may wait anywhere, as LibTorch's do. It needs the fabric's
  /// communicator and a `bell`. Empty: the learner runs on the simulation's thread.
  std::function<std::shared_ptr<baton_thread>()> thread;
};

/// Calls a hook again after its learner has thrown `not_yet` (troupe/learner.hpp). Of the fire
/// drills only `raise` is supported. Not thread-safe: one simulation, one thread.
class inline_lanes : public lane_backend {
public:
  explicit inline_lanes(inline_lane_options options)
      : options_(std::make_shared<const inline_lane_options>(std::move(options))) {}
  std::unique_ptr<lane> open(const learner_context& context, recipe_ptr recipe,
                             lane_sink sink) override;

private:
  std::shared_ptr<const inline_lane_options> options_;
};

}  // namespace troupe
