#include "apps/testing/tensors/tensors_payload.hpp"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "backends/checkpoint/digest.hpp"
#include "backends/torch/classifier.hpp"
#include "backends/torch/data_parallel.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/reference_executor.hpp"
#include "backends/torch/single_device.hpp"
#include "backends/torch/synthetic.hpp"

namespace troupe::testing {

namespace {

using blobs = std::vector<tensor_blob>;

std::uint64_t digest_of(const blobs& state) {
  return std::stoull(weights_digest(state).substr(0, 16), nullptr, 16);
}

class small_classifier final : public classifier {
public:
  small_classifier(classifier_options options, std::optional<tensors_options::poison> nan)
      : classifier(std::move(options)), nan_(nan) {}

  step_output training_step(const batch& b, std::int64_t index) override {
    auto made = classifier::training_step(b, index);
    if (!nan_ || nan_->rank != rank() || nan_->step != at().step) return made;
    return made.loss() * std::numeric_limits<double>::quiet_NaN();
  }

private:
  const std::optional<tensors_options::poison> nan_;
};

classifier_options model_of(const tensors_options& from) {
  classifier_options how;
  how.layers.hidden = from.hidden;
  how.layers.dropout = from.dropout;
  how.layers.features = from.features;
  how.layers.classes = from.classes;
  how.optimizer = from.optimizer;
  how.learning_rate = from.learning_rate;
  return how;
}

// Loaders with threads of their own would run beside the one that holds the baton.
template <class Strategy>
class inline_loading final : public Strategy {
public:
  using Strategy::Strategy;
  loader::options process_dataloader(loader::options how, stage purpose) override {
    auto made = Strategy::process_dataloader(how, purpose);
    made.prefetch = 0;
    return made;
  }
};

strategy_table inline_strategies() {
  return {{"single_device",
           [](strategy_parts parts) {
             return std::make_unique<inline_loading<single_device>>(std::move(parts));
           }},
          {"data_parallel", [](strategy_parts parts) {
             auto options = data_parallel_options_of(parts.about.options.gradients);
             return std::make_unique<inline_loading<data_parallel>>(std::move(parts),
                                                                    std::move(options));
           }}};
}

// The production learner, with a fault before and a look behind each hook.
class watched final : public learner {
public:
  using module_slot = std::shared_ptr<std::shared_ptr<troupe::module>>;
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
    if (const auto* step = h.get_if<hooks::optimizer_step>(); step && outcome.samples > 0)
      ground_.stepped(who_, step->at.step + 1, digest_of(state_of(**trains_)));
    return outcome;
  }
  value result() override { return inner_->result(); }

private:
  const learner_context who_;
  const payload_ground& ground_;  // the recipe's, which the lane holds
  const module_slot trains_;
  const recipe_ptr recipe_;
  const std::unique_ptr<learner> inner_;
};

class watched_recipe final : public learner_recipe {
public:
  watched_recipe(tensors_options options, data_ptr data, payload_ground ground)
      : options_(std::move(options)), data_(std::move(data)), ground_(std::move(ground)) {}

  std::unique_ptr<learner> make(const learner_context& context) const override {
    auto slot = std::make_shared<std::shared_ptr<troupe::module>>();
    torch_plugins plugins;
    plugins.strategies = inline_strategies();
    plugins.checkpoints = ground_.checkpoints;
    auto model = [slot, how = options_] {
      *slot = std::make_shared<small_classifier>(model_of(how), how.nan);
      return *slot;
    };
    return std::make_unique<watched>(context, ground_, slot,
                                     make_recipe(model, data_, std::move(plugins)));
  }

private:
  const tensors_options options_;
  const data_ptr data_;
  const payload_ground ground_;
};

std::unique_ptr<torch::optim::Optimizer> optimizer_of(torch::nn::Module& m) {
  auto made = dynamic_cast<module&>(m).configure_optimizers();
  auto& optimizer = *made.all().at(0).optimizer;
  if (auto* sgd = dynamic_cast<torch::optim::SGD*>(&optimizer))
    return std::make_unique<torch::optim::SGD>(std::move(*sgd));
  if (auto* adamw = dynamic_cast<torch::optim::AdamW*>(&optimizer))
    return std::make_unique<torch::optim::AdamW>(std::move(*adamw));
  return std::make_unique<torch::optim::Adam>(
      std::move(dynamic_cast<torch::optim::Adam&>(optimizer)));
}

std::optional<difference> differs(const blobs& is, const blobs& should) {
  for (std::size_t i = 0; i < std::max(is.size(), should.size()); ++i) {
    if (i >= is.size() || i >= should.size() || is[i].name != should[i].name)
      return difference{i < should.size() ? should[i].name : is[i].name, -1};
    const auto& a = *is[i].bytes;
    const auto& b = *should[i].bytes;
    if (a == b && is[i].dtype == should[i].dtype && is[i].shape == should[i].shape) continue;
    const auto byte = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    std::int64_t elements = 1;
    for (const auto extent : should[i].shape) elements *= extent;
    const auto each = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(b.size()) / std::max<std::int64_t>(1, elements));
    return difference{should[i].name, byte / each};
  }
  return std::nullopt;
}

class tensors_of_job final : public payload_job {
public:
  tensors_of_job(const field_job& what, tensors_options options)
      : options_(std::move(options)), job_(what.options()) {
    synthetic_options made_up;
    made_up.samples = what.samples;
    made_up.evaluation = 1;
    made_up.shape = {options_.features};
    made_up.classes = options_.classes;
    data_ = synthetic(made_up);
    data_->setup(stage::train);
    if (!options_.nan) execute_reference();
  }

  recipe_ptr recipe(payload_ground ground) const override {
    return std::make_shared<watched_recipe>(options_, data_, std::move(ground));
  }
  std::optional<std::uint64_t> digest_behind(std::int64_t steps) override {
    if (options_.nan) return std::nullopt;
    return digests_.at(static_cast<std::size_t>(steps));
  }
  std::optional<difference> compare(const snapshot& is, std::int64_t steps) override {
    if (options_.nan || steps == 0) return std::nullopt;
    const auto at = static_cast<std::size_t>(steps);
    if (auto wrong = differs(is.model, models_.at(at))) return wrong;
    return differs(is.optimizer, optimizers_.at(at));
  }

private:
  void execute_reference() {
    reference_run run;
    torch::nn::Module* first = nullptr;
    run.make_module = [&] {
      auto made = std::make_shared<small_classifier>(model_of(options_), std::nullopt);
      if (!first) first = made.get();
      return made;
    };
    run.loss = [](torch::nn::Module& m, const value& held, std::int64_t index) {
      return dynamic_cast<module&>(m).training_step(batch{held, 1}, index).loss();
    };
    run.make_optimizer = optimizer_of;
    run.data = data_->train();
    run.seed = job_.seed;
    run.shards = job_.ranks;
    run.batch_size = job_.batch_size;
    run.accumulate_grad_batches = job_.accumulate_grad_batches;
    run.max_epochs = std::numeric_limits<std::int64_t>::max();
    run.max_steps = job_.max_steps;
    models_.resize(1), optimizers_.resize(1), digests_.resize(1);
    run.after_step = [&](torch::optim::Optimizer& optimizer, std::int64_t) {
      models_.push_back(state_of(*first));
      optimizers_.push_back(state_of(optimizer, *first, 0).tensors);
      digests_.push_back(digest_of(models_.back()));
    };
    execute(run);
  }

  const tensors_options options_;
  const trainer_options job_;
  data_ptr data_;
  std::vector<blobs> models_;  // behind each step; nothing at 0
  std::vector<blobs> optimizers_;
  std::vector<std::uint64_t> digests_;
};

class tensors final : public payload {
public:
  explicit tensors(tensors_options options) : options_(std::move(options)) {}
  std::string_view name() const override { return "tensors"; }
  bool waits() const override { return true; }
  std::shared_ptr<payload_job> of(const field_job& what) override {
    const key k{what.ranks, what.steps, what.samples, what.batch_size, what.accumulate, what.seed};
    for (const auto& [known, job] : known_)
      if (known == k) return job;
    constexpr std::size_t most = 16;
    if (known_.size() >= most) known_.erase(known_.begin());
    return known_.emplace_back(k, std::make_shared<tensors_of_job>(what, options_)).second;
  }

private:
  using key = std::tuple<std::int32_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::uint64_t>;
  const tensors_options options_;
  std::vector<std::pair<key, std::shared_ptr<tensors_of_job>>> known_;
};

}  // namespace

std::shared_ptr<payload> tensors_payload(tensors_options options) {
  return std::make_shared<tensors>(std::move(options));
}

}  // namespace troupe::testing
