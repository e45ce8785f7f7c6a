// Reduce, clip and update in one pass over memory: each rank of a process does its slices of the
// parameters for all ranks of the process.
#pragma once

#include <memory>
#include <string>

#include "troupe/communicator.hpp"
#include "troupe/hooks.hpp"

namespace torch::optim {
class Optimizer;
}

namespace troupe {

/// The step of one optimizer. Takes each parameter's gradient from all ranks' `.grad`, sums them
/// slice by slice in canonical order, clips, lets LibTorch's own optimizer update rank 0's slice
/// and copies the result to the others, while the slice is in the cache of the core that does it.
/// Ends in the same bits as summing, clipping and stepping apart, because all of it is done element
/// by element with the same operators (the norm of clipping is taken from whole gradients, in a
/// pass of its own).
///
/// Possible with a communicator whose ranks share memory, for torch::optim::SGD, Adam and AdamW
/// themselves (no class derived from them) over dense float parameters on the CPU, with a precision
/// that leaves gradients as they are, without a communication hook. The optimizer's state lies on
/// rank 0 alone, where it is what it always is (checkpoints, resuming and export see no
/// difference); on other ranks it is empty. Behind the step, `.grad` is the clipped sum on rank 0
/// and this rank's own part on others.
///
/// Used by one lane. All ranks make it with the same optimizer and call the same in the same order.
class fused_step {
public:
  /// Why this is not possible; empty when it is.
  static std::string obstacle(const torch::optim::Optimizer& optimizer, const communicator& world);

  /// `optimizer` outlives it.
  fused_step(std::shared_ptr<communicator> world, torch::optim::Optimizer& optimizer);
  ~fused_step();
  fused_step(const fused_step&) = delete;
  fused_step& operator=(const fused_step&) = delete;

  /// For the next run, instead of clipping gradients that are not summed yet. 0 or less: nothing.
  void clip(double limit, hooks::clip_gradients::algorithm how);
  /// Behind a backward whose gradients were not summed (reducer::last_backward::sum): every
  /// parameter with a `.grad` has one on all ranks. Waits for all.
  void run();

private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace troupe
