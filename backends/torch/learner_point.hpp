// What a learner keeps of a point of its run, to return to it: all that changes within a step
// except the weights and the optimizers' state; those only in manual optimization.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/torch/callback_list.hpp"
#include "backends/torch/hook_changes.hpp"
#include "troupe/detail/loop_state.hpp"
#include "troupe/detail/metric_accumulator.hpp"
#include "troupe/detail/optimizer_state.hpp"

namespace torch::optim {
class OptimizerOptions;
}

namespace troupe {

struct learner_point {
  /// A buffer of the module and a copy of it. Every buffer is copied at every point, because
  /// LibTorch's batch_norm changes running statistics without a new tensor version.
  struct kept_tensor {
    at::Tensor tensor;
    at::Tensor copy;
  };
  std::vector<kept_tensor> buffers;
  /// Copies of what all ranks had after the update, before on_train_batch_end; by buffer.
  std::vector<at::Tensor> common;
  bool has_common = false;  ///< else the two are equal
  // In manual optimization, where a step may update weights several times.
  std::vector<kept_tensor> weights;
  std::vector<at::Tensor> gradients;  ///< copies, by weight; undefined: none
  std::vector<optimizer_state> optimizers;
  module_flags flags;
  group_sizes groups;
  std::vector<std::shared_ptr<const torch::optim::OptimizerOptions>> options;  ///< by group
  std::string data;                                              ///< data_module::state
  std::vector<std::pair<std::int64_t, std::size_t>> schedulers;  ///< offered, number fed
  std::string precision;
  kept_callbacks callbacks;

  metric_accumulator steps;
  metric_accumulator epochs;
  std::shared_ptr<const std::vector<std::vector<std::byte>>> books;
  bool books_of_step = false;
  bool epoch_logs = true;
  metrics logged;
  metrics results;

  std::int64_t non_finite_steps = 0;
  bool stepped = false;
  bool steps_reported = true;
  bool wants_stop = false;
  loop_state done;
  std::chrono::nanoseconds saved_at{0};
};

}  // namespace troupe
