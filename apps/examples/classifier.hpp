// What a user writes: a module with its steps and its optimizer.
#pragma once

#include <torch/torch.h>
#include <troupe/troupe.hpp>

struct classifier : troupe::module {
  explicit classifier(int64_t hidden = 64) {
    net->push_back(torch::nn::Flatten());
    net->push_back(torch::nn::Linear(28 * 28, hidden));
    net->push_back(torch::nn::ReLU());
    net->push_back(torch::nn::Linear(hidden, 10));
  }

  troupe::step_output training_step(const troupe::batch& b, int64_t) override {
    auto loss = torch::nn::functional::cross_entropy(net->forward(b[0]), b[1]);
    log("train/loss", loss);
    return loss;
  }
  troupe::step_output test_step(const troupe::batch& b, int64_t) override {
    auto right = net->forward(b[0]).argmax(1).eq(b[1]).sum();
    log_ratio("test/accuracy", right.item<double>(), static_cast<double>(b.samples()));
    return {};
  }
  // The scores of the classes.
  troupe::value predict_step(const troupe::batch& b, int64_t) override {
    return troupe::boxed(net->forward(b[0]));
  }
  troupe::optimizers configure_optimizers() override {
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }

  torch::nn::Sequential net = register_module("net", torch::nn::Sequential());
};
