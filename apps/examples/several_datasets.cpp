// Trains on two datasets at once: few samples with labels, and many without. Four shards share two
// processes, one of which is killed: each sample is used as often as without the failure.
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <iostream>
#include <troupe/data.hpp>
#include <troupe/module.hpp>
#include <troupe/strategy.hpp>
#include <troupe/trainer.hpp>

namespace {

/// Two clouds of points in a plane; the labels (or none) say which.
troupe::dataset_ptr clouds(std::int64_t size, bool labelled) {
  const auto which = at::arange(size) % 2;
  const auto angle = at::arange(size) * 0.37;
  const auto points = at::stack({angle.cos() + 3 * which, angle.sin()}, 1);
  if (!labelled) return troupe::tensor_dataset({points});
  return troupe::tensor_dataset({points, which.to(at::kFloat).unsqueeze(1)});
}

/// Learns from the labels, and to be certain where there are none.
struct half_taught : troupe::module {
  troupe::step_output training_step(const troupe::batch& b, std::int64_t) override {
    const auto taught = troupe::part_of(b, "labelled");
    const auto others = troupe::part_of(b, "unlabelled");
    const auto loss = at::binary_cross_entropy_with_logits(net->forward(taught[0]), taught[1]);
    const auto guess = at::sigmoid(net->forward(others[0]));
    log("train/loss", loss);
    return loss + 0.1 * (guess * (1 - guess)).mean();
  }
  troupe::optimizers configure_optimizers() override {
    return torch::optim::Adam(parameters(), torch::optim::AdamOptions(0.05));
  }
  torch::nn::Linear net = register_module("net", torch::nn::Linear(2, 1));
};

troupe::recipe_ptr make_recipe() {
  return troupe::recipe_for<half_taught>(
      troupe::make_data({.name = "clouds",
                         .train = troupe::combined_dataset(
                             {{.name = "labelled", .data = clouds(60, true)},
                              {.name = "unlabelled", .data = clouds(500, false), .samples = 4}})}));
}

std::string train(std::vector<troupe::fault_drill> faults) {
  troupe::trainer trainer{{.ranks = 2,
                           .max_epochs = 2,
                           .batch_size = 4,
                           .placement = troupe::placement_kind::processes,
                           .elastic = {.max_restarts = 3, .shards = 4},
                           .faults = std::move(faults)}};
  const auto outcome = trainer.run(troupe::stage::train, make_recipe());
  outcome.rethrow();
  std::cout << "entries " << outcome.loop.samples << ", restarts " << outcome.restarts
            << ", train/loss " << outcome.last.at("train/loss") << '\n';
  return outcome.weights->weights_digest;
}

}  // namespace

int main(int count, char** arguments) {
  if (const auto code = troupe::run_rank_if_child(count, arguments, make_recipe)) return *code;
  const auto expected = train({});
  const auto digest = train(
      {{.what = troupe::fault_drill::kind::kill, .rank = 1, .hook = "training_step", .step = 11}});
  std::cout << "weights " << (digest == expected ? "" : "not ") << "as undisturbed\n";
  return digest == expected ? 0 : 1;
}
