// Data and modules small enough to be recomputed independently.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/optim.h>

#include <functional>
#include <map>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/torch/rank_random.hpp"
#include "tests/support/rank_threads.hpp"
#include "troupe/module.hpp"

namespace troupe::testing {

namespace fn = torch::nn::functional;

/// A check in a module or strategy of several ranks: Catch's own are for one thread only.
inline void expect(bool yes, std::source_location at = std::source_location::current()) {
  if (!yes) throw std::logic_error("not as expected: line " + std::to_string(at.line()));
}

/// Pairs (inputs, targets) by row.
class table_data : public data_module {
public:
  struct rows : dataset {
    at::Tensor inputs, targets;
    std::int64_t size() const override { return inputs.size(0); }
    value get(std::span<const std::int64_t> indices) const override {
      const auto at = torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
      return value_tuple{{boxed(inputs.index_select(0, at)), boxed(targets.index_select(0, at))}};
    }
  };

  explicit table_data(std::int64_t samples, std::int64_t features = 4,
                      std::int64_t validation = 0) {
    rank_random draws{17};
    const random_scope scope{draws};
    train_ = make(samples, features);
    if (validation > 0) validation_ = make(validation, features);
  }
  dataset_ptr train() override { return train_; }
  std::vector<dataset_ptr> validation() override {
    return validation_ ? std::vector<dataset_ptr>{validation_} : std::vector<dataset_ptr>{};
  }
  std::vector<dataset_ptr> test() override { return validation(); }
  std::vector<dataset_ptr> predict() override { return validation(); }

  const at::Tensor& inputs() const { return train_->inputs; }
  const at::Tensor& targets() const { return train_->targets; }
  const rows& held_out() const { return *validation_; }

private:
  static std::shared_ptr<rows> make(std::int64_t samples, std::int64_t features) {
    auto made = std::make_shared<rows>();
    made->inputs = torch::randn({samples, features});
    made->targets = torch::sin(made->inputs.sum(1, true)) + 0.1 * torch::randn({samples, 1});
    return made;
  }

  std::shared_ptr<rows> train_;
  std::shared_ptr<rows> validation_;
};

struct regression;
struct regression_choices {
  std::int64_t features = 4;
  double dropout = 0;
  bool batch_norm = false;
  std::function<optimizers(regression&)> optimize;
};

/// A small regression; tests pass what they vary.
struct regression : module {
  using choices = regression_choices;
  explicit regression(choices how = {}) : how_(std::move(how)) {
    net->push_back(torch::nn::Linear(how_.features, 16));
    if (how_.batch_norm) net->push_back(torch::nn::BatchNorm1d(16));
    net->push_back(torch::nn::Tanh());
    if (how_.dropout > 0) net->push_back(torch::nn::Dropout(how_.dropout));
    net->push_back(torch::nn::Linear(16, 1));
  }
  step_output training_step(const batch& b, std::int64_t) override {
    const auto loss = fn::mse_loss(net->forward(b[0]), b[1]);
    log("train/loss", loss);
    return loss;
  }
  step_output validation_step(const batch& b, std::int64_t) override {
    const auto loss = fn::mse_loss(net->forward(b[0]), b[1]);
    log("val/loss", loss);
    return loss;
  }
  step_output test_step(const batch& b, std::int64_t) override {
    log("test/loss", fn::mse_loss(net->forward(b[0]), b[1]));
    return {};
  }
  value predict_step(const batch& b, std::int64_t) override { return boxed(net->forward(b[0])); }
  optimizers configure_optimizers() override {
    if (how_.optimize) return how_.optimize(*this);
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }

  torch::nn::Sequential net = register_module("net", torch::nn::Sequential());

private:
  choices how_;
};

/// Trains its last layer; from epoch 1 on the first one, too, at a rate of its own and without
/// dropout. Each epoch has more weight decay than the one before.
struct fine_tuned : regression {
  fine_tuned()
      : regression(
            {.dropout = 0.2, .optimize = [](regression& self) {
               return optimizers{torch::optim::Adam(self.net[3]->parameters(), 0.01)}.scheduled(
                   schedules::exponential(0.9), {.every = schedule::interval::step});
             }}) {
    for (auto& one : net[0]->parameters()) one.set_requires_grad(false);
  }
  void on_train_epoch_start(std::int64_t epoch) override {
    auto& groups = optimizers_in_use()->all()[0].optimizer->param_groups();
    auto& options = static_cast<torch::optim::AdamOptions&>(groups[0].options());
    options.weight_decay(1.5 * options.weight_decay() + 0.01);
    if (epoch != 1) return;
    for (auto& one : net[0]->parameters()) one.set_requires_grad(true);
    net[2]->eval();
    optimizers_in_use()->all()[0].optimizer->add_param_group(torch::optim::OptimizerParamGroup{
        net[0]->parameters(), std::make_unique<torch::optim::AdamOptions>(0.003)});
  }
};

inline std::map<std::string, at::Tensor> weights_of(const snapshot_ptr& taken) {
  std::map<std::string, at::Tensor> named;
  for (const auto& blob : taken->model) named[blob.name] = tensor_of(blob);
  return named;
}

/// The largest difference of any weight.
inline double distance(const std::map<std::string, at::Tensor>& a,
                       const std::map<std::string, at::Tensor>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [name, tensor] : a) {
    if (!b.contains(name)) return INFINITY;
    if (tensor.numel() > 0)
      most = std::max(
          most, (tensor.to(at::kDouble) - b.at(name).to(at::kDouble)).abs().max().item<double>());
  }
  return most;
}

inline trainer_options quick(std::int32_t ranks, std::int64_t batch_size, std::int64_t max_steps) {
  trainer_options options;
  options.ranks = ranks;
  options.batch_size = batch_size;
  options.max_steps = max_steps;
  options.max_epochs = 1000;
  options.num_sanity_val_steps = 0;
  options.seed = 3;
  return options;
}

/// The weights after a fit of `Module(arguments...)`.
template <class Module, class... Arguments>
std::map<std::string, at::Tensor> trained(const trainer_options& options, data_ptr data,
                                          Arguments... arguments) {
  const auto ends = run_good_job(
      {.recipe = recipe_for<Module>(std::move(data), std::move(arguments)...), .options = options});
  return weights_of(ends[0].snapshot);
}

/// The weights that one process computes with plain LibTorch on the same order of samples. The
/// gradient of each step is that of the mean loss over all samples of its window.
template <class Module, class... Arguments>
std::map<std::string, at::Tensor> by_hand(const trainer_options& options, const table_data& data,
                                          Arguments... arguments) {
  rank_random draws{options.seed};
  const random_scope scope{draws};
  auto module = std::make_shared<Module>(arguments...);
  auto with = module->configure_optimizers();
  auto& optimizer = *with.all().at(0).optimizer;
  const data_layout layout{data.inputs().size(0), options.ranks, options.batch_size};
  std::int64_t steps = 0;
  for (std::int64_t epoch = 0; steps < *options.max_steps; ++epoch) {
    const auto order = torch::tensor(permutation(options.seed, epoch, layout.size));
    for (std::int64_t b = 0; b < layout.batches() && steps < *options.max_steps; ++steps) {
      const auto last = std::min(b + options.accumulate_grad_batches, layout.batches()) - 1;
      const auto at = order.narrow(0, layout.of_batch(b).first, layout.samples(b, last));
      const batch whole{value_tuple{{boxed(data.inputs().index_select(0, at)),
                                     boxed(data.targets().index_select(0, at))}},
                        at.numel()};
      optimizer.step([&] {
        optimizer.zero_grad();
        auto loss = module->training_step(whole, b).loss();
        loss.backward();
        return loss;
      });
      b = last + 1;
    }
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : module->named_parameters()) weights[item.key()] = item.value().detach();
  for (const auto& item : module->named_buffers()) weights[item.key()] = item.value();
  return weights;
}

}  // namespace troupe::testing
