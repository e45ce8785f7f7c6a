#include "apps/testing/tensors/simulated_learner.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <ATen/ops/addmm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>

#include <mutex>
#include <utility>

#include "apps/testing/delivery.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/single_device.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/module.hpp"

namespace troupe::testing {

namespace {

template <class Strategy>
class simulated final : public Strategy {
public:
  template <class... Parts>
  explicit simulated(const payload_ground& ground, Parts&&... parts)
      : Strategy(std::forward<Parts>(parts)...), ground_(ground) {}

  std::unique_ptr<loader> process_dataloader(std::unique_ptr<loader> made, stage purpose) override {
    auto how = made->settings();
    how.prefetch = 0;
    return Strategy::process_dataloader(std::make_unique<loader>(made->data(), how), purpose);
  }
  step_output training_step(const batch& b, std::int64_t index) override {
    // In manual optimization the loss that a step returns is no gradient's.
    const auto& trained = this->bare_module();
    const bool applied = ground_.poisons && trained->automatic_optimization() &&
                         ground_.poisons(this->about(), trained->at());
    auto made = Strategy::training_step(b, index);
    return applied ? spoilt(made) : made;
  }

private:
  const payload_ground& ground_;  // the recipe's, which the lane keeps alive
};

strategy_table strategies_on(const payload_ground& ground) {
  return {{"single_device",
           [&ground](strategy_parts parts) {
             return std::make_unique<simulated<single_device>>(ground, std::move(parts));
           }},
          {"data_parallel", [&ground](strategy_parts parts) {
             auto options = data_parallel_options_of(parts.about.options.gradients);
             return std::make_unique<simulated<data_parallel>>(ground, std::move(parts),
                                                               std::move(options));
           }}};
}

// LibTorch asks machine and environment once per process, when a feature is first used: vector
// instructions, a seed, settings of MKL and oneDNN. This call makes it ask here.
void warm_up_process() {
  at::detail::getDefaultCPUGenerator();
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto square = at::ones({8, 8}, type).requires_grad_();
    at::addmm(square, square, square).sum().backward();
  }
  at::conv2d(at::ones({2, 1, 8, 8}), at::ones({1, 1, 3, 3}));
}

// MKL's vector functions read their mode from the environment once per thread.
void warm_up_thread() {
  const not_delivering own;
  static std::once_flag once;
  std::call_once(once, warm_up_process);
  at::ones({16}).sqrt();
}

class watched final : public learner {
public:
  using module_slot = std::shared_ptr<std::shared_ptr<module>>;
  watched(const learner_context& who, const payload_ground& ground, module_slot trains,
          recipe_ptr recipe)
      : who_(who),
        ground_(ground),
        trains_(std::move(trains)),
        recipe_(std::move(recipe)),
        inner_(recipe_->make(who)) {}

  void bind(std::shared_ptr<communicator> world, generation_id generation) override {
    inner_->bind(std::move(world), generation);
  }
  hook_outcome on(const hook& h, const closure& inner) override {
    ground_.at_hook(who_, h);
    auto outcome = inner_->on(h, inner);
    if (outcome.samples > 0)
      ground_.stepped(who_, where(h).step + 1, digest_of(state_of(**trains_)));
    return outcome;
  }
  void keep_point() override { inner_->keep_point(); }
  value result() override { return inner_->result(); }

private:
  const learner_context who_;
  const payload_ground& ground_;
  const module_slot trains_;
  const recipe_ptr recipe_;
  const std::unique_ptr<learner> inner_;
};

class watched_recipe final : public learner_recipe {
public:
  watched_recipe(tensor_job what, payload_ground ground)
      : job_(std::move(what)), ground_(std::move(ground)) {}

  std::unique_ptr<learner> make(const learner_context& context) const override {
    warm_up_thread();
    auto slot = std::make_shared<std::shared_ptr<module>>();
    torch_plugins plugins;
    plugins.strategies = strategies_on(ground_);
    plugins.checkpoints = ground_.checkpoints;
    auto model = [slot, make = job_.make_module] { return *slot = make(); };
    return std::make_unique<watched>(context, ground_, slot,
                                     make_recipe(model, job_.data, std::move(plugins)));
  }

private:
  const tensor_job job_;
  const payload_ground ground_;
};

}  // namespace

recipe_ptr simulated_recipe(tensor_job what, payload_ground ground) {
  return std::make_shared<watched_recipe>(std::move(what), std::move(ground));
}

}  // namespace troupe::testing
