// The synchronised batch norms inside a module.
#pragma once

#include <torch/nn/module.h>

namespace troupe {

/// Converts in `copy`, which has the sub-modules of `original`, the batch norms that are converted
/// in `original`.
void copy_sync_layers(torch::nn::Module& original, torch::nn::Module& copy);

}  // namespace troupe
