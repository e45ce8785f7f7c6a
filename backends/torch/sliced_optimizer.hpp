// An optimizer whose step can be done slice by slice, in any order, by several threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace troupe {

/// Each slice of a parameter is stepped by an optimizer of the same class and options. Its state is
/// the matching slice of the real optimizer's state, so the arithmetic is LibTorch's own. Slices
/// begin at multiples of 64 elements, so that vectorized loops treat each element as they do in the
/// whole tensor.
///
/// A step: `prepare` for each parameter, then `update` once for each slice (thread-safe for
/// different slices), then `finish`. The real optimizer holds the state, as if it had stepped.
class sliced_optimizer {
public:
  struct slice {
    std::int64_t offset;  ///< in elements, in memory order
    std::int64_t count;
    at::Tensor gradient;
  };

  /// A parameter that has a gradient, with its group's options.
  struct due {
    at::Tensor parameter;
    const torch::optim::OptimizerOptions* options;
  };

  virtual ~sliced_optimizer() = default;

  /// In the optimizer's order.
  static std::vector<due> all_due(const torch::optim::Optimizer& optimizer);
  static void forget_state(torch::optim::Optimizer& optimizer);

  /// Why an optimizer cannot be sliced, empty when it can: torch::optim::SGD, Adam and AdamW
  /// themselves over dense float parameters on the CPU.
  static std::string obstacle(const torch::optim::Optimizer& optimizer);
  /// `optimizer` outlives it. Throws internal_error for one of another class.
  static std::unique_ptr<sliced_optimizer> of(torch::optim::Optimizer& optimizer);
  /// At least one, also for a parameter without elements.
  static std::size_t slices_of(std::int64_t elements);

  /// `parameter` is number `entry` of this step. Its gradient has the same layout.
  virtual void prepare(std::size_t entry, const at::Tensor& parameter,
                       const torch::optim::OptimizerOptions& options) = 0;
  /// Thread-safe for different slices. To be called before `update` of the slice.
  virtual slice part_of(std::size_t entry, std::size_t slice) = 0;
  virtual void update(std::size_t entry, std::size_t slice) = 0;
  virtual void finish() = 0;
};

}  // namespace troupe
