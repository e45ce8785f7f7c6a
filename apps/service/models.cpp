#include "apps/service/models.hpp"

#include <troupe/callbacks.hpp>
#include <troupe/data.hpp>
#include <troupe/module.hpp>
#include <troupe/strategy.hpp>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <utility>

namespace service {

namespace {

constexpr std::int64_t image_numbers = 28 * 28;

struct classifier : troupe::module {
  explicit classifier(const learning& w) : what(w) {
    auto width = what.data == "csv" ? what.features : image_numbers;
    net->push_back(torch::nn::Flatten());
    for (const auto next : what.hidden) {
      net->push_back(torch::nn::Linear(width, next));
      net->push_back(torch::nn::ReLU());
      width = next;
    }
    net->push_back(torch::nn::Linear(width, what.classes));
  }

  torch::Tensor loss_of(const troupe::batch& b) {
    return torch::nn::functional::cross_entropy(net->forward(b[0]), b[1]);
  }
  troupe::step_output training_step(const troupe::batch& b, int64_t) override {
    auto loss = loss_of(b);
    log("train/loss", loss);
    return loss;
  }
  troupe::step_output validation_step(const troupe::batch& b, int64_t) override {
    const auto logits = net->forward(b[0]);
    const auto samples = static_cast<double>(b.samples());
    log_ratio("val/accuracy", logits.argmax(1).eq(b[1]).sum().item<double>(), samples);
    log_ratio("val/loss",
              torch::nn::functional::cross_entropy(logits, b[1]).item<double>() * samples, samples);
    return {};
  }
  troupe::optimizers configure_optimizers() override {
    return torch::optim::SGD(parameters(),
                             torch::optim::SGDOptions(what.learning_rate).momentum(what.momentum));
  }

  const learning what;
  torch::nn::Sequential net = register_module("net", torch::nn::Sequential());
};

troupe::data_ptr data_of(const learning& what) {
  if (what.data == "csv") return troupe::csv_data(what.path);
  if (what.data == "fashion_mnist") return troupe::fashion_mnist();
  return troupe::synthetic({.samples = what.samples, .classes = what.classes});
}

}  // namespace

troupe::recipe_ptr recipe_of(const learning& what) {
  troupe::torch_plugins with{.callbacks = {troupe::rank_monitor{}}};
  return troupe::make_recipe([what] { return std::make_shared<classifier>(what); }, data_of(what),
                             std::move(with));
}

}  // namespace service
