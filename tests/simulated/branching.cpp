#include "tests/simulated/branching.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "troupe/data.hpp"
#include "troupe/module.hpp"

namespace troupe::testing {

namespace {

constexpr std::int64_t features = 6;
constexpr std::int64_t classes = 3;

class branching final : public module {
public:
  explicit branching(const branching_how& how) : how_(how) { extra->to(at::kDouble); }

  step_output training_step(const batch& b, std::int64_t) override {
    namespace fn = torch::nn::functional;
    if (how_.asks_environment && rank() == 1 && std::getenv("SEED")) return {};
    auto x = in->forward(b[0]).relu();
    {
      const at::NoGradGuard no_grad;
      seen.mul_(0.9).add_(x.detach().mean(0), 0.1);
    }
    // Which ranks use the layer depends on their samples; in some steps no rank does.
    if (b[1][0].item<std::int64_t>() == 0) x = x + extra->forward(x.to(at::kDouble)).to(at::kFloat);
    x = fn::dropout(x - seen, fn::DropoutFuncOptions().p(0.3).training(is_training()));
    const auto loss = fn::cross_entropy(out->forward(x), b[1]);
    return how_.by_rank ? loss * (1 + rank()) : loss;
  }

  optimizers configure_optimizers() override {
    auto made = how_.adam ? optimizers{torch::optim::AdamW(parameters(), 0.01)}
                          : optimizers{torch::optim::SGD(
                                parameters(), torch::optim::SGDOptions(0.05).momentum(0.9))};
    made.scheduled<torch::optim::StepLR>({.every = schedule::interval::step}, 3, 0.9);
    made.scheduled<torch::optim::StepLR>({.every = schedule::interval::epoch}, 1, 0.95);
    return made;
  }
  bool reads_gradients() const override { return false; }

  static constexpr std::int64_t width = 8;
  torch::nn::Linear in = register_module("in", torch::nn::Linear(features, width));
  torch::nn::Linear extra = register_module("extra", torch::nn::Linear(width, width));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(width, classes));
  at::Tensor seen = register_buffer("seen", at::zeros({width}));

private:
  const branching_how how_;
};

// Generated samples with noise, drawn partly by a sample's key and partly by the loader's
// generator.
class noisy final : public data_module {
public:
  explicit noisy(std::int64_t samples) : plain_(synthetic(of(samples))) {}
  void setup(stage purpose) override { plain_->setup(purpose); }
  dataset_ptr train() override { return std::make_shared<with_noise>(plain_->train()); }

private:
  static synthetic_options of(std::int64_t samples) {
    synthetic_options how;
    how.samples = samples;
    how.evaluation = 1;
    how.shape = {features};
    how.classes = classes;
    return how;
  }

  class with_noise final : public dataset {
  public:
    explicit with_noise(dataset_ptr plain) : plain_(std::move(plain)) {}
    std::int64_t size() const override { return plain_->size(); }
    value get(std::span<const std::int64_t> indices) const override { return plain_->get(indices); }
    value get_keyed(std::span<const std::int64_t> indices, const sample_keys& keys) const override {
      auto held = plain_->get(indices);
      auto& features = held.get_if<value_tuple>()->items.at(0);
      auto moved = unboxed(features) + 0.05 * at::randn_like(unboxed(features));
      for (std::size_t i = 0; i < indices.size(); ++i)
        moved[static_cast<std::int64_t>(i)].add_(static_cast<double>(keys.of(indices[i]) % 1000) *
                                                 1e-4);
      features = boxed(moved);
      return held;
    }

  private:
    const dataset_ptr plain_;
  };

  const data_ptr plain_;
};

struct full_batches final : module {
  explicit full_batches(std::int64_t batch_size) : batch_size_(batch_size) {}
  torch::nn::Linear net = register_module("net", torch::nn::Linear(features, classes));

  step_output training_step(const batch& b, std::int64_t) override {
    if (b[0].size(0) != batch_size_) throw std::length_error("a batch of another size");
    return torch::nn::functional::cross_entropy(net->forward(b[0]), b[1]);
  }
  optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }

private:
  const std::int64_t batch_size_;
};

struct conferring final : module {
  explicit conferring(called_collectives* calls) : calls_(calls) {}
  torch::nn::Linear net = register_module("net", torch::nn::Linear(features, classes));

  step_output training_step(const batch& b, std::int64_t) override {
    return torch::nn::functional::cross_entropy(net->forward(b[0]), b[1]);
  }
  optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }

  void on_train_epoch_start(std::int64_t) override {
    if (!calls_) return;
    barrier("epoch");
    ++(*calls_)["barrier 0 epoch"];
  }
  batch_verdict on_train_batch_start(const batch&, std::int64_t) override {
    if (!calls_) return {};
    const auto sum = reduce(at::full({7}, rank() + 1.0), "sum");
    expect(at::equal(sum, at::full({7}, world() * (world() + 1) / 2.0)));
    ++(*calls_)["all_reduce 28 "];
    return {};
  }
  void on_before_optimizer_step(torch::optim::Optimizer&) override {
    if (!calls_) return;
    const auto received = broadcast(value{std::int64_t{40} + at().step + rank()}, world() - 1);
    expect(*received.get_if<std::int64_t>() == 39 + at().step + world());
    ++(*calls_)["broadcast 8 "];  // the length; then the bytes
  }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    if (!calls_) return;
    const auto all = all_gather(at::full({5}, rank() + 0.5));
    for (std::int32_t r = 0; r < world(); ++r) expect(at::equal(all[r], at::full({5}, r + 0.5)));
    ++(*calls_)["all_gather 20 "];
    expect(reduce_boolean_decision(rank() == 0, decision::any));
    expect(reduce_boolean_decision(rank() == 0, decision::all) == (world() == 1));
    (*calls_)["decide 1 "] += 2;
  }

private:
  static void expect(bool right) {
    if (!right) throw std::logic_error("a collective in a hook has another result");
  }
  called_collectives* const calls_;
};

class adversaries final : public module {
public:
  explicit adversaries(bool strays) : strays_(strays) {
    first_ = register_module("first", torch::nn::Linear(features, 2));
    second_ = register_module("second", torch::nn::Linear(2, 1));
  }
  bool automatic_optimization() const override { return false; }
  step_output training_step(const batch& b, std::int64_t) override {
    const auto made = first_->forward(b[0]);
    optimizer(0).zero_grad();
    manual_backward(-second_->forward(made).mean());
    optimizer(0).step();
    optimizer(1).zero_grad();
    manual_backward(second_->forward(made.detach()).pow(2).mean());
    optimizer(1).step();
    const at::NoGradGuard off;
    if (strays_ && at().step == 3 && rank() == 1) second_->weight.add_(1);
    return {};
  }
  optimizers configure_optimizers() override {
    return optimizers{torch::optim::AdamW(first_->parameters(), 0.01)}.add(
        torch::optim::SGD(second_->parameters(), torch::optim::SGDOptions(0.05)));
  }

private:
  const bool strays_;
  torch::nn::Linear first_{nullptr}, second_{nullptr};
};

}  // namespace

tensors_options branching_module(const branching_how& how) {
  tensors_options options;
  options.make_module = [how] { return std::make_shared<branching>(how); };
  options.data = std::make_shared<noisy>(how.samples);
  options.reference = !how.by_rank;
  options.vary_samples = true;
  return options;
}

tensors_options conferring_module(called_collectives* calls) {
  tensors_options options;
  options.make_module = [calls] { return std::make_shared<conferring>(calls); };
  options.vary_samples = true;
  return options;
}

tensors_options full_batch_module(std::int64_t batch_size, std::int64_t samples) {
  tensors_options options;
  options.make_module = [batch_size] { return std::make_shared<full_batches>(batch_size); };
  options.data = synthetic({.samples = samples, .shape = {features}, .classes = classes});
  return options;
}

tensors_options adversarial_module(bool strays) {
  tensors_options options;
  options.make_module = [strays] { return std::make_shared<adversaries>(strays); };
  options.reference = false;
  return options;
}

}  // namespace troupe::testing
