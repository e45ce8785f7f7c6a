// Lanes of a simulated world: runs are handled later, under virtual time, by the world's thread; or
// by a thread per lane that runs only while the world's stands still.
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

/// What hooks that happen at one moment cost in virtual time, all together.
using hook_cost_fn =
    std::function<std::chrono::nanoseconds(std::int32_t rank, std::span<const hook> what)>;

/// How an inline lane spends its time.
struct inline_lane_options {
  later_fn later;
  std::function<std::chrono::nanoseconds()> now;  ///< virtual
  hook_cost_fn cost;                              ///< empty: nothing costs anything
  /// Rung when what the learner waits for has ended; null: it is asked again each `poll`.
  std::shared_ptr<lane_bell> bell;
  std::chrono::nanoseconds poll = std::chrono::microseconds{50};
  /// Hooks happen at one moment, behind the sum of their costs, up to the second one that may wait
  /// for peers: fewer events. What comes behind the first wait happens when that has ended. Else
  /// each hook (an optimizer_step with its closure) is a moment.
  bool in_spans = false;
  /// Makes the thread that a learner lives in: there it may wait for its peers wherever it likes,
  /// as LibTorch's do. Its communicator must be the fabric's, and `bell` be set. Empty: it lives in
  /// the world's.
  std::function<std::shared_ptr<baton_thread>()> thread;
};

/// A lane that cannot wait calls a hook again when its learner has thrown `not_yet`
/// (troupe/learner.hpp). Drills: only `raise`. Not thread-safe: one world, one thread.
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
