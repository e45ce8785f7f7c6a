// The synchronised batch norms inside a module.
#pragma once

#include <torch/nn/module.h>

namespace troupe {

/// Converts in `copy`, which has the sub-modules of `original`, the batch norms that are converted
/// in `original`.
void copy_sync_layers(torch::nn::Module& original, torch::nn::Module& copy);

/// Members and Sequentials hold the batch norms that a conversion replaced. What was set on these,
/// as by `norm->eval()`, is set on the layers of `module`, too. Not within a scope.
void follow_replaced_norms(torch::nn::Module& module);

}  // namespace troupe
