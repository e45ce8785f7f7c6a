// Goal: the snippets of docs/replicated.md compile and compute what the page says.
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/optim.h>
#include <torch/utils.h>

#include "troupe/module.hpp"
#include "troupe/replicated.hpp"
#include "troupe/sync_batch_norm.hpp"

#include "tests/support/catch.hpp"

namespace documented {

namespace {

struct small_net : torch::nn::Cloneable<small_net> {
  small_net() { small_net::reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(8, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(layer->forward(x)); }

  torch::nn::Linear layer{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

at::Tensor loss_on_devices(const at::Tensor& x, const std::vector<c10::Device>& devices) {
  const auto net = std::make_shared<small_net>();
  net->to(devices[0]);
  troupe::convert_sync_batch_norm(*net);  // statistics of the whole batch, not of its chunks
  troupe::replicated parallel{net, {.device_ids = devices}};
  const auto loss = parallel(x).square().mean();
  loss.backward();  // into net's gradients
  return loss;
}

struct batch_maximum : torch::nn::Cloneable<batch_maximum>, troupe::replication_aware {
  void reset() override {}
  void on_replicate(const std::shared_ptr<troupe::replication_context>& context,
                    std::int64_t copy_id) override {
    context_ = context;
    copy_ = copy_id;
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto mine = x.max();
    if (!context_) return mine;  // a single device
    return context_->exchange<at::Tensor>(copy_, mine, [](std::vector<at::Tensor> all) {
      return std::vector<at::Tensor>(all.size(), torch::stack(all).max());
    });
  }

  std::shared_ptr<troupe::replication_context> context_;
  std::int64_t copy_ = 0;
};

struct classifier : troupe::module {
  classifier() { troupe::convert_sync_batch_norm(*this); }
  troupe::step_output training_step(const troupe::batch& b, std::int64_t) override {
    return torch::nn::functional::cross_entropy(layer(norm(b[0])), b[1]);
  }
  troupe::optimizers configure_optimizers() override {
    return torch::optim::SGD(parameters(), 0.1);
  }

  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(8, 3));
};

}  // namespace

TEST_CASE("documented snippets of replicated compute what the page says") {
  torch::manual_seed(1);
  const c10::Device cpu{c10::kCPU};
  const auto x = torch::randn({6, 8});
  // The mean square of normalised numbers.
  CHECK(std::abs(loss_on_devices(x, {cpu, cpu}).item<double>() - 1) < 1e-3);
  troupe::replicated largest{std::make_shared<batch_maximum>(), {.device_ids = {cpu, cpu}}};
  CHECK(largest(x).equal(x.max().expand({2})));
  const auto made = std::make_shared<classifier>();
  CHECK(troupe::convert_sync_batch_norm(*made) == 0);
  CHECK(made->training_step({troupe::value_tuple{
                                 {troupe::boxed(x), troupe::boxed(torch::zeros({6}, at::kLong))}},
                             6},
                            0)
            .has_loss());
}

}  // namespace documented
