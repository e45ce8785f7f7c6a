#include "apps/service/models.hpp"

#include <fmt/format.h>
#include <troupe/callbacks.hpp>
#include <troupe/data.hpp>
#include <troupe/module.hpp>
#include <troupe/strategy.hpp>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

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

// What a csv file holds is known on the ranks only, which read it.
void check_sizes(const learning& what, troupe::data_module& data) {
  const auto refuse = [&](const char* field, std::int64_t value, const std::string& right) {
    throw troupe::user_error(troupe::errc::bad_configuration,
                             fmt::format("data.{} is {}, but {}", field, value, right));
  };
  const auto all = data.train();
  for (std::int64_t first = 0; all && first < all->size(); first += 1024) {
    std::vector<std::int64_t> indices(
        static_cast<std::size_t>(std::min<std::int64_t>(1024, all->size() - first)));
    std::iota(indices.begin(), indices.end(), first);
    const troupe::batch some{all->get(indices), 1};
    const auto columns = some[0].numel() / some[0].size(0);
    if (columns != what.features)
      refuse("features", what.features,
             fmt::format("a sample of {} has {} of them: give {}", what.path, columns, columns));
    if (some[1].is_floating_point() || some[1].min().item<std::int64_t>() < 0)
      throw troupe::user_error(
          troupe::errc::bad_configuration,
          fmt::format("a target of {} is no class: number the classes from 0", what.path));
    if (const auto most = some[1].max().item<std::int64_t>(); most >= what.classes)
      refuse("classes", what.classes,
             fmt::format("a target of {} is {}: give {} or more", what.path, most, most + 1));
  }
}

}  // namespace

troupe::recipe_ptr recipe_of(const learning& what) {
  troupe::torch_plugins with{.callbacks = {troupe::rank_monitor{}}};
  const auto data = data_of(what);
  const auto make = [what, data] {
    if (what.data == "csv") check_sizes(what, *data);
    return std::make_shared<classifier>(what);
  };
  return troupe::make_recipe(make, data, std::move(with));
}

}  // namespace service
