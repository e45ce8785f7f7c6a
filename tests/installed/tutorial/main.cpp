#include <torch/torch.h>

#include <iostream>
#include <numbers>
#include <string>
#include <troupe/troupe.hpp>

/// `size` points (size, 2) of two spirals, and the spiral of each (size).
troupe::dataset_ptr spirals(std::int64_t size, double shift) {
  const auto which = torch::arange(size) % 2;
  const auto along = (torch::arange(size) + shift) / static_cast<double>(size);
  const auto angle = 9 * along + std::numbers::pi * which;
  const auto points = torch::stack({along * angle.cos(), along * angle.sin()}, 1);
  return troupe::tensor_dataset({points.to(torch::kFloat), which});
}

troupe::data_ptr both() {
  return troupe::make_data({.name = "spirals",
                            .train = spirals(2048, 0),
                            .validation = {spirals(500, 0.5)},
                            .test = {spirals(500, 0.25)}});
}

struct sizes {
  std::int64_t hidden = 32;
  double rate = 0.01;
  template <class F>
  void fields(F&& f) {
    f("hidden", hidden), f("rate", rate);
  }
};

struct spiral_net : troupe::module {
  using hparams = sizes;
  explicit spiral_net(sizes how = {}) : rate(how.rate) {
    save_hyperparameters(how);
    net->push_back(torch::nn::Linear(2, how.hidden));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(how.hidden, how.hidden));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(how.hidden, 2));
  }

  troupe::step_output training_step(const troupe::batch& b, std::int64_t) override {
    auto loss = torch::nn::functional::cross_entropy(net->forward(b[0]), b[1]);
    log("train/loss", loss);
    return loss;
  }
  troupe::step_output validation_step(const troupe::batch& b, std::int64_t) override {
    log("val/loss", torch::nn::functional::cross_entropy(net->forward(b[0]), b[1]));
    return {};
  }
  troupe::step_output test_step(const troupe::batch& b, std::int64_t) override {
    const auto right = net->forward(b[0]).argmax(1).eq(b[1]).sum();
    log_ratio("test/accuracy", right.item<double>(), static_cast<double>(b.samples()));
    return {};
  }
  troupe::optimizers configure_optimizers() override {
    return torch::optim::Adam(parameters(), torch::optim::AdamOptions(rate));
  }

  torch::nn::Sequential net = register_module("net", torch::nn::Sequential());
  double rate;
};

troupe::recipe_ptr make_recipe() { return troupe::recipe_for<spiral_net>(both()); }

int main(int count, char** arguments) {
  if (const auto code = troupe::run_rank_if_child(count, arguments, make_recipe)) return *code;
  const std::string run = count > 1 ? arguments[1] : "runs/first";
  troupe::trainer_options how{.ranks = 4, .max_epochs = 20, .batch_size = 16};
  if (count > 2 && arguments[2] == std::string{"kill"}) {
    how.placement = troupe::placement_kind::processes;
    how.elastic.max_restarts = 3;
    how.faults = {
        {.what = troupe::fault_drill::kind::kill, .rank = 2, .hook = "backward", .step = 99}};
  }

  troupe::trainer trainer{how, {.run_folder = run}};
  const auto fitted = trainer.run(troupe::stage::train, make_recipe());
  fitted.rethrow();
  const auto tested = trainer.run(troupe::stage::test, make_recipe());
  tested.rethrow();
  std::cout << "steps " << fitted.loop.steps << ", restarts " << fitted.restarts
            << ", test accuracy " << tested.last.at("test/accuracy") << '\n';

  const auto made = troupe::load_from_checkpoint<spiral_net>(run);
  const auto scores = made->net->forward(torch::tensor({{-0.1F, -0.5F}, {0.1F, 0.5F}}));
  std::cout << "weights " << fitted.weights->weights_digest << ", spirals of two points "
            << scores.argmax(1)[0].item<int>() << ' ' << scores.argmax(1)[1].item<int>() << '\n';
}
