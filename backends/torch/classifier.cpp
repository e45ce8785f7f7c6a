#include "backends/torch/classifier.hpp"

#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <fmt/format.h>

namespace troupe {

namespace nn = torch::nn::functional;

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const optimizer_choice& choice,
                                                        std::vector<at::Tensor> parameters) {
  using namespace torch::optim;
  if (choice.name == "sgd")
    return std::make_shared<SGD>(std::move(parameters), SGDOptions(choice.learning_rate)
                                                            .momentum(choice.momentum)
                                                            .weight_decay(choice.weight_decay));
  if (choice.name == "adam")
    return std::make_shared<Adam>(
        std::move(parameters), AdamOptions(choice.learning_rate).weight_decay(choice.weight_decay));
  if (choice.name == "adamw")
    return std::make_shared<AdamW>(
        std::move(parameters),
        AdamWOptions(choice.learning_rate).weight_decay(choice.weight_decay));
  throw user_error(
      errc::bad_configuration,
      fmt::format("there is no optimizer \"{}\"; there are: sgd, adam, adamw", choice.name));
}

classifier::classifier(torch::nn::Sequential layers, optimizer_choice choice)
    : net(register_module("net", std::move(layers))), choice_(std::move(choice)) {}

step_output classifier::training_step(const batch& b, std::int64_t) {
  auto loss = nn::cross_entropy(net->forward(b[0]), b[1]);
  log("train/loss", loss);
  return loss;
}

step_output classifier::validation_step(const batch& b, std::int64_t) {
  evaluate(b, "val");
  return {};
}

step_output classifier::test_step(const batch& b, std::int64_t) {
  evaluate(b, "test");
  return {};
}

void classifier::evaluate(const batch& b, const std::string& prefix) {
  const auto scores = net->forward(b[0]);
  const auto count = static_cast<double>(b.samples());
  const auto losses =
      nn::cross_entropy(scores, b[1], nn::CrossEntropyFuncOptions().reduction(torch::kSum));
  const auto right = scores.argmax(1).eq(b[1]).sum();
  log_ratio(prefix + "/loss", losses.item<double>(), count);
  log_ratio(prefix + "/accuracy", static_cast<double>(right.item<std::int64_t>()), count);
}

value classifier::predict_step(const batch& b, std::int64_t) {
  return boxed(net->forward(b[0]).argmax(1));
}

optimizers classifier::configure_optimizers() {
  optimizers all;
  all.add(make_optimizer(choice_, parameters()));
  return all;
}

}  // namespace troupe
