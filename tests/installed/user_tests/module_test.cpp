// Goal: a user's own module and data run in the simulator, and are compared with the serial
// reference.
#include <troupe/data.hpp>
#include <troupe/module.hpp>
#include <troupe/testing.hpp>
#include <troupe/testing/tensors.hpp>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <catch2/catch.hpp>

namespace sim = troupe::testing;

struct classifier : troupe::module {
  torch::nn::Sequential net = register_module(
      "net", torch::nn::Sequential(torch::nn::Linear(6, 12), torch::nn::ReLU(),
                                   torch::nn::Dropout(0.2), torch::nn::Linear(12, 3)));

  troupe::step_output training_step(const troupe::batch& b, std::int64_t) override {
    return torch::nn::functional::cross_entropy(net->forward(b[0]), b[1]);
  }
  troupe::optimizers configure_optimizers() override {
    return torch::optim::AdamW(parameters(), 0.01);
  }
};

TEST_CASE("a module ends in the same bits under any schedule of faults", "[sim][module]") {
  auto plan = sim::swarm_of("crash_rank, crash_host, power_loss, pause, cut, not_a_number");
  plan.payload = sim::tensors_payload(
      {.make_module = [] { return std::make_shared<classifier>(); },
       .data = troupe::synthetic({.samples = 60, .shape = {6}, .classes = 3})});
  const auto r = sim::explore({.ranks = 3, .steps = 12, .samples = 60}, plan, {.runs = 30});

  INFO(sim::report(r));
  CHECK(r.held("state equals the reference"));
  CHECK(r.met("resumed from a checkpoint"));
  REQUIRE(r.clean());
}

// The counter is neither parameter nor buffer, so a checkpoint does not contain it.
struct forgetful : classifier {
  troupe::step_output training_step(const troupe::batch& b, std::int64_t index) override {
    return classifier::training_step(b, index).loss() * std::min(1.0, ++steps_ * 0.1);
  }
  int steps_ = 0;
};

TEST_CASE("module state that a checkpoint lacks is detected after a resume", "[sim][module]") {
  auto plan = sim::swarm_of("crash_rank, power_loss");
  plan.payload = sim::tensors_payload(
      {.make_module = [] { return std::make_shared<forgetful>(); },
       .data = troupe::synthetic({.samples = 60, .shape = {6}, .classes = 3})});
  const auto r = sim::explore({.ranks = 2, .steps = 8, .samples = 60}, plan, {.runs = 30});

  CHECK_FALSE(r.held("state equals the reference"));
  CHECK_THAT(sim::report(r), Catch::Contains("differs from the serial reference"));
}
