// Goal: the serial reference executor computes what a plain training loop computes. Other tests
// compare with it.
#include "backends/torch/reference_executor.hpp"

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "backends/checkpoint/digest.hpp"
#include "backends/torch/models.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/tensor.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

struct model : torch::nn::Module {
  explicit model(double dropout = 0, bool normed = false) {
    net = register_module(
        "net", make_mlp({.hidden = {8}, .dropout = dropout, .features = 6, .classes = 3}));
    if (normed) norm = register_module("norm", torch::nn::BatchNorm1d{3});
  }
  at::Tensor loss(const value& batch) {
    const auto& items = batch.get_if<value_tuple>()->items;
    auto y = net->forward(unboxed(items[0]));
    if (norm) y = norm->forward(y);
    return torch::nn::functional::cross_entropy(y, unboxed(items[1]));
  }
  torch::nn::Sequential net{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

reference_run plain(std::int64_t shards, double dropout = 0, bool normed = false) {
  static const auto data = synthetic({.samples = 50, .shape = {6}, .classes = 3})->train();
  reference_run run;
  run.make_module = [=] { return std::make_shared<model>(dropout, normed); };
  run.loss = [](torch::nn::Module& m, const value& batch, std::int64_t) {
    return m.as<model>()->loss(batch);
  };
  run.make_optimizer = [](torch::nn::Module& m) {
    return std::make_unique<torch::optim::SGD>(m.parameters(),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  run.data = data;
  run.shards = shards;
  run.batch_size = 4;
  run.max_epochs = 2;
  return run;
}

std::string digest_of(const reference_run& run) { return weights_digest(execute(run).model); }

double distance(const std::vector<tensor_blob>& a, const std::vector<tensor_blob>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, tensor_of(a[i]).sub(tensor_of(b[i])).abs().max().item<double>());
  return most;
}

/// A second way to the same numbers: each window as one large batch of a plain loop.
std::vector<tensor_blob> by_whole_batches(const reference_run& run) {
  auto start = run;
  start.max_epochs = 0;
  const auto initial = execute(start).model;
  auto module = std::make_shared<model>();
  std::vector<at::Tensor> parameters = module->parameters();
  for (std::size_t i = 0; i < initial.size(); ++i)
    parameters[i].detach().copy_(tensor_of(initial[i]));
  auto optimizer = run.make_optimizer(*module);
  const auto wide =
      static_cast<std::size_t>(run.shards * run.batch_size * run.accumulate_grad_batches);
  for (std::int64_t epoch = 0; epoch < run.max_epochs; ++epoch) {
    const auto order = permutation(run.seed, epoch, run.data->size());
    for (std::size_t first = 0; first < order.size(); first += wide) {
      const auto count = std::min(wide, order.size() - first);
      optimizer->zero_grad();
      module->loss(run.data->get(std::span{order}.subspan(first, count))).backward();
      optimizer->step();
    }
  }
  std::vector<tensor_blob> model;
  for (std::size_t i = 0; i < initial.size(); ++i)
    model.push_back(blob_of(initial[i].name, parameters[i]));
  return model;
}

TEST_CASE("shards and accumulation windows add up to whole batches") {
  for (const std::int64_t shards : {1, 2, 3, 7})
    for (const std::int64_t accumulate : {1, 2, 5}) {
      auto run = plain(shards);
      run.accumulate_grad_batches = accumulate;
      INFO(shards << " shards, windows of " << accumulate);
      CHECK(distance(execute(run).model, by_whole_batches(run)) < 1e-6);
    }
}

TEST_CASE("the reference counts steps and samples and epochs") {
  auto run = plain(2);
  run.accumulate_grad_batches = 3;
  auto done = execute(run);
  CHECK(done.steps == 2 * 3);  // seven batches: six of 8 samples, one of 2; windows of 3, 3 and 1
  CHECK(done.samples == 100);
  CHECK(done.epochs == 2);
  CHECK(done.losses.size() == 6);
  run.max_steps = 4;
  done = execute(run);
  CHECK(done.steps == 4);
  CHECK(done.samples == 50 + 24);
  CHECK(done.epochs == 1);
  run.batches_per_epoch = 2;
  done = execute(run);
  CHECK(done.steps == 2);
  CHECK(done.samples == 32);
}

TEST_CASE("equal runs end in equal bytes with and without dropout") {
  for (const double dropout : {0.0, 0.5}) {
    auto run = plain(3, dropout);
    const auto once = digest_of(run);
    at::rand({5});  // the host draws in between
    CHECK(digest_of(run) == once);
    run.seed = 1;
    CHECK(digest_of(run) != once);
  }
  CHECK(digest_of(plain(3, 0.5)) != digest_of(plain(3, 0.0)));
}

TEST_CASE("a shard without samples contributes nothing") {
  auto run = plain(7);
  run.batch_size = 8;  // 50 samples: one batch in pieces of 8 and 7
  run.max_epochs = 1;
  CHECK(execute(run).samples == 50);
  run.shards = 64;
  run.batch_size = 1;  // 14 shards have no sample
  CHECK(execute(run).samples == 50);
  CHECK(distance(execute(run).model, by_whole_batches(run)) < 1e-6);
}

TEST_CASE("after each step the buffers are those of shard 0") {
  auto run = plain(2, 0, true);
  run.batch_size = 5;
  const auto end = execute(run);
  const auto found = std::find_if(end.model.begin(), end.model.end(), [](const tensor_blob& blob) {
    return blob.name == "norm.num_batches_tracked";
  });
  REQUIRE(found != end.model.end());
  CHECK(tensor_of(*found).item<std::int64_t>() == end.steps);
}

TEST_CASE("a run starts from the given initial weights") {
  auto run = plain(2);
  run.max_epochs = 1;
  const auto first = execute(run);
  run.max_steps = 0;
  run.initial = first.model;
  CHECK(weights_digest(execute(run).model) == weights_digest(first.model));
}

TEST_CASE("gradient clipping bounds the size of a step") {
  auto run = plain(2);
  run.max_steps = 1;
  run.make_optimizer = [](torch::nn::Module& m) {
    return std::make_unique<torch::optim::SGD>(m.parameters(), torch::optim::SGDOptions(1.0));
  };
  run.clip_norm = 1e-3;
  const auto after = execute(run).model;
  run.max_steps = 0;
  CHECK(distance(after, execute(run).model) < 1.1e-3);
}

TEST_CASE("a schedule changes the learning rate after each step") {
  auto run = plain(1);
  run.max_steps = 3;
  run.after_step = [](torch::optim::Optimizer& optimizer, std::int64_t steps) {
    optimizer.param_groups()[0].options().set_lr(0.1 / static_cast<double>(steps + 1));
  };
  CHECK(execute(run).optimizer_groups.find(R"("lr":0.025)") != std::string::npos);
}

}  // namespace
}  // namespace troupe
