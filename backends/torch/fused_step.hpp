// Reduces, clips and updates in one pass over memory: each rank of a process computes its slices of
// the parameters for all ranks of the process.
#pragma once

#include <memory>
#include <string>

#include "troupe/communicator.hpp"
#include "troupe/observer.hpp"

namespace torch::optim {
class Optimizer;
}

namespace troupe {

/// The step of one optimizer. Takes each parameter's gradient from all ranks' `.grad`, sums them
/// slice by slice in canonical order, clips, lets LibTorch's own optimizer update rank 0's slice
/// and copies the result to the others, while the slice is in the cache of the core that does it.
/// The result has the same bits as separate reduce, clip and step, because every element goes
/// through the same operators. (The norm for clipping is computed from whole gradients, in a
/// separate pass.)
///
/// Possible with a communicator whose ranks share memory, for torch::optim::SGD, Adam and AdamW
/// themselves (no class derived from them) over dense float parameters on the CPU, with a precision
/// that does not change gradients, without a communication hook. Only rank 0 holds the optimizer's
/// state, in its usual form (checkpoints, resuming and export see no difference); on other ranks it
/// is empty. After the step, `.grad` is the clipped sum on rank 0. On other ranks it is the rank's
/// own part.
///
/// Used by one lane. All ranks create it with the same optimizer and make the same calls in the
/// same order.
class fused_step {
public:
  /// Why this is not possible; empty when it is.
  static std::string obstacle(const torch::optim::Optimizer& optimizer, const communicator& world);

  /// `optimizer` outlives it.
  fused_step(std::shared_ptr<communicator> world, torch::optim::Optimizer& optimizer);
  ~fused_step();
  fused_step(const fused_step&) = delete;
  fused_step& operator=(const fused_step&) = delete;

  /// Clips the sums of the next run. It replaces clip_gradients, which would see unsummed
  /// gradients. 0 or less: no clipping.
  void clip(double limit, hooks::clip_gradients::algorithm how);
  /// Called after a backward whose gradients were not summed (reducer_options::summed_elsewhere):
  /// a parameter has a `.grad` on all ranks or on none. Waits for all ranks.
  void run();

private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace troupe
