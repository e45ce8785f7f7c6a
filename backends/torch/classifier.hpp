// The module behind the program's built-in models: a classifier of single labels.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <string>

#include "backends/torch/module.hpp"

namespace troupe {

/// Which optimizer, by the name that `--optimizer` takes, and its numbers.
struct optimizer_choice {
  std::string name = "sgd";  ///< sgd, adam, adamw
  double learning_rate = 0.05;
  double momentum = 0.9;  ///< sgd only
  double weight_decay = 0;
};
/// Throws user_error that lists the names there are.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(const optimizer_choice& choice,
                                                        std::vector<at::Tensor> parameters);

/// Cross entropy on batches (inputs, labels (N) int64); `net` maps inputs to (N, classes). Logs
/// `train/loss`; `val/loss` and `val/accuracy`; `test/loss` and `test/accuracy`: means over
/// samples, no sample counted twice. Predicts the class of each sample, (N) int64.
struct classifier : module {
  classifier(torch::nn::Sequential layers, optimizer_choice choice);

  step_output training_step(const batch& b, std::int64_t index) override;
  step_output validation_step(const batch& b, std::int64_t index) override;
  step_output test_step(const batch& b, std::int64_t index) override;
  value predict_step(const batch& b, std::int64_t index) override;
  optimizers configure_optimizers() override;

  torch::nn::Sequential net;

private:
  void evaluate(const batch& b, const std::string& prefix);

  optimizer_choice choice_;
};

}  // namespace troupe
