// Lanes as threads of this process: one per rank, for as long as the rank lives.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "backends/lane.hpp"

namespace troupe {

/// Opens one thread per lane. If a lane is destroyed while user code runs in it, the thread goes on
/// alone: its state is in a block of its own that is freed when the code returns, and its answers
/// are dropped.
class thread_lanes : public lane_backend {
public:
  explicit thread_lanes(std::function<std::chrono::nanoseconds()> now) : now_(std::move(now)) {}
  std::unique_ptr<lane> open(const learner_context& context, recipe_ptr recipe,
                             lane_sink sink) override;

private:
  std::function<std::chrono::nanoseconds()> now_;
};

}  // namespace troupe
