// The loss scale of float16: Python's torch.amp.GradScaler on LibTorch's own operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace troupe {

/// GradScaler's defaults.
struct scaler_options {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
};

/// One scale for all optimizers. In each step: `scaled` losses, then for each optimizer `unscale`
/// and, if `usable`, its step; then one `update`. The scale grows after growth_interval updates
/// without an infinite or undefined gradient, and shrinks at each update with one.
class gradient_scaler {
public:
  /// Throws user_error (bad_configuration) unless growth_factor > 1, 0 < backoff_factor < 1,
  /// init_scale > 0 and growth_interval >= 1.
  explicit gradient_scaler(scaler_options how = {});

  double scale() const;
  /// Updates since the scale last changed, as long as they were usable.
  std::int64_t growth_tracker() const;

  at::Tensor scaled(const at::Tensor& loss) const;
  at::Tensor unscaled(const at::Tensor& loss) const;
  /// Divides the gradients of this optimizer's parameters by the scale, in place. True: one of them
  /// is infinite or no number. Throws user_error (job_failed) for float16 gradients.
  bool unscale(torch::optim::Optimizer& optimizer);
  /// Another rank found an unusable gradient of this optimizer, after this rank's `unscale`.
  void spoil(const torch::optim::Optimizer& optimizer);
  /// There were gradients since the last update, and all were finite.
  bool usable(const torch::optim::Optimizer& optimizer) const;
  /// Looks at each `unscale` since the last update, also of an optimizer that has several. Leaves
  /// the scale alone if none of them met a gradient.
  void update();

  /// JSON text with the keys of GradScaler.state_dict().
  std::string state() const;
  /// Drops what was found since the last update. Throws nlohmann::json::exception.
  void load_state(const std::string& json);

private:
  void note(const torch::optim::Optimizer& optimizer, bool usable);

  scaler_options how_;
  at::Tensor scale_;                                      // float32
  at::Tensor tracker_;                                    // int32
  std::map<const torch::optim::Optimizer*, bool> found_;  // of its last unscale: usable
  std::optional<bool> any_;  // since the last update: an unusable gradient; none: no gradient
};

}  // namespace troupe
