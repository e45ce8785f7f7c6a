// An optimizer's state as blobs and JSON, and back, to the bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/snapshot.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace troupe {

/// `tensors` are named `<index>.<parameter>.<slot>` (`0.net.1.weight.exp_avg`; step counts are I64
/// scalars), `groups` is JSON text: `{"type": "adam", "groups": [{"lr": 0.1, ..., "parameters":
/// ["net.1.weight", ...]}]}`. A parameter that is not the module's is called `group<g>.<i>`.
/// SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS are written out like this; any other optimizer is
/// asked to serialize itself, into one blob `<index>.archive` with the type `archive`.
struct optimizer_state {
  std::vector<tensor_blob> tensors;
  std::string groups;
};

optimizer_state state_of(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                         std::int32_t index);

/// The optimizer goes on where the other stood: slots, step counts, learning rates. Its parameters
/// must be those of the saved one, group by group. Throws user_error (checkpoint) that says what
/// does not fit; then the optimizer is as it was.
void load_state(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                std::int32_t index, const optimizer_state& state);

}  // namespace troupe
