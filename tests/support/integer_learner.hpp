// A learner whose weights are integers, so that every mismatch is a logic error. It runs in lanes
// that can wait, and in lanes that cannot (where it throws `not_yet`).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "troupe/detail/data_order.hpp"
#include "troupe/learner.hpp"

namespace troupe::testing {

struct integer_options {
  std::int64_t samples = 24;
  std::int64_t validation_samples = 0;
  std::size_t width = 4;
  bool can_wait = false;
  /// Called at every hook, in the lane; may throw.
  std::function<void(const learner_context& context, const hook& what)> at_hook;
  /// Reads a checkpoint; needed by runs that resume.
  std::function<snapshot(const std::string& path)> load;
};

/// In each step weight i grows by the sum over the consumed samples s of (s + 1) * (i + 1), in
/// wrapping 64-bit arithmetic.
class integer_learner : public learner {
public:
  integer_learner(const learner_context& context, integer_options options)
      : context_(context), options_(std::move(options)), weights_(options_.width, 0) {}

  void bind(std::shared_ptr<communicator> world, generation_id) override {
    world_ = std::move(world);
  }
  hook_outcome on(const hook& h, const closure& inner) override;
  value result() override;

private:
  data_layout layout() const {
    return {options_.samples, context_.world, context_.options.batch_size};
  }
  data_layout layout(std::int64_t epoch) const {
    return epoch == resumed_.epoch ? layout().resumed(resumed_.batch, resumed_.cursor) : layout();
  }
  hook_outcome lengths(stage s) const;
  hook_outcome step(const hooks::optimizer_step& h, const closure& inner);
  void backward(const hooks::backward& h);
  void wait_for(const work_ptr& what);
  hook_outcome save(const hooks::save_checkpoint& h) const;
  hook_outcome load(const hooks::load_checkpoint& h);

  learner_context context_;
  integer_options options_;
  std::shared_ptr<communicator> world_;
  std::vector<std::int64_t> weights_;
  std::vector<std::int64_t> gradient_;
  work_ptr reducing_;
  work_ptr pending_;
  loop_state resumed_;  // where this run began
  bool closure_ran_ = false;
};

class integer_recipe : public learner_recipe {
public:
  explicit integer_recipe(integer_options options) : options_(std::move(options)) {}
  std::unique_ptr<learner> make(const learner_context& context) const override {
    return std::make_unique<integer_learner>(context, options_);
  }

private:
  integer_options options_;
};

/// The weights after `steps` steps, computed in one thread without the runtime.
std::vector<std::int64_t> expected_integers(const integer_options& options, std::int64_t ranks,
                                            const trainer_options& run, std::int64_t steps);
/// The weights in the result of a run.
std::vector<std::int64_t> integers_of(const value& result);

}  // namespace troupe::testing
