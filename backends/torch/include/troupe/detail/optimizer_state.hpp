// Converts an optimizer's state to blobs and JSON and back, without changing a bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/value.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace troupe {

/// `tensors` are named `<index>.<parameter>.<slot>` (`0.net.1.weight.exp_avg`; step counts are I64
/// scalars), `groups` is JSON text: `{"type": "adam", "groups": [{"lr": 0.1, ..., "parameters":
/// ["net.1.weight", ...]}]}`. A parameter that is not the module's is called `group<g>.<i>`.
/// SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS are stored like this. Any other optimizer
/// serializes itself into one blob `<index>.archive` with the type `archive`.
struct optimizer_state {
  std::vector<tensor_blob> tensors;
  std::string groups;
};

/// Copies options of this optimizer into a group of it; of an optimizer that is not listed above
/// the learning rate only.
void copy_options(const torch::optim::OptimizerOptions& from,
                  const torch::optim::Optimizer& optimizer,
                  torch::optim::OptimizerParamGroup& into);

/// Throws user_error (checkpoint) for an optimizer with a state that its `save` does not write: of
/// a class that is not listed above, and does not override LibTorch's, which write nothing.
void check_saves(const torch::optim::Optimizer& optimizer, std::int32_t index);

optimizer_state state_of(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                         std::int32_t index);

/// Restores slots, step counts and learning rates. The optimizer's parameters must be those of the
/// saved one, group by group; else throws user_error (checkpoint) that names the difference and
/// leaves the optimizer unchanged.
void load_state(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                std::int32_t index, const optimizer_state& state);

}  // namespace troupe
