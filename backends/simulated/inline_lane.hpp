// Lanes without threads: runs are handled in the caller's thread, later, under virtual time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "backends/lane.hpp"
#include "backends/simulated/later.hpp"

namespace troupe {

/// What a hook costs in virtual time.
using hook_cost_fn = std::function<std::chrono::nanoseconds(std::int32_t rank, const hook& what)>;

/// A lane that cannot wait calls a hook again when its learner throws `not_yet`
/// (backends/learner.hpp), each `poll` of virtual time. `now` is virtual. Drills: only `raise`.
class inline_lanes : public lane_backend {
public:
  inline_lanes(later_fn later, std::function<std::chrono::nanoseconds()> now, hook_cost_fn cost,
               std::chrono::nanoseconds poll = std::chrono::microseconds{50});
  std::unique_ptr<lane> open(const learner_context& context, recipe_ptr recipe,
                             lane_sink sink) override;

private:
  later_fn later_;
  std::function<std::chrono::nanoseconds()> now_;
  hook_cost_fn cost_;
  std::chrono::nanoseconds poll_;
};

}  // namespace troupe
