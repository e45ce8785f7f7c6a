// The module of the `troupe` program: classification with one of the built-in models.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>

#include "backends/torch/models.hpp"
#include "troupe/module.hpp"

namespace troupe {

/// Keys `model.*` and `optimizer.*` of the configuration.
struct classifier_options {
  std::string model = "mlp";  ///< a name of the model catalog
  model_options layers;
  std::string optimizer = "sgd";  ///< sgd, adam, adamw
  double learning_rate = 0.05;
  double momentum = 0.9;  ///< sgd
  double weight_decay = 0;
  std::string scheduler = "none";  ///< none, cosine, polynomial: to 0 in `epochs`, by epochs
  std::int64_t warmup_epochs = 0;  ///< before it: the rate rises linearly from a third
  std::int64_t epochs = 0;         ///< of the run, the warm-up included
};

/// Batches are (features, labels int64). Loss: cross entropy. Logs `train/loss`, and in evaluation
/// `val/loss`, `val/accuracy`, `test/loss`, `test/accuracy`, summed in float64 over labels.
/// Predictions are logits (N, classes). A model of texts has T labels per sample, and logits
/// (N, classes, T).
class classifier : public module {
public:
  /// Throws user_error (bad_configuration) for unknown names and impossible values.
  explicit classifier(classifier_options options = {});

  step_output training_step(const batch& b, std::int64_t index) override;
  step_output validation_step(const batch& b, std::int64_t index) override;
  step_output test_step(const batch& b, std::int64_t index) override;
  value predict_step(const batch& b, std::int64_t index) override;
  optimizers configure_optimizers() override;
  bool reads_gradients() const override { return false; }

protected:
  /// `later`: make_layers makes the layers, when the sizes are known.
  enum class layers : std::uint8_t { now, later };
  classifier(classifier_options options, layers when);
  void make_layers(std::int64_t features, std::int64_t classes);

private:
  void judge(const batch& b, const std::string& stage);
  at::Tensor as_weights(const at::Tensor& inputs) const;
  at::Tensor logits(const batch& b);
  optimizers plain_optimizers();

  classifier_options options_;
  bool reads_text_ = false;
  torch::nn::Sequential net_;
};

}  // namespace troupe
