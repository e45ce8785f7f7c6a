// Checkpoints as Python's torch.load(FILE, weights_only=True) opens them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "troupe/snapshot.hpp"

namespace troupe {

/// The file's bytes, in pieces to be written one behind the other. A dictionary with the keys of
/// Lightning: `state_dict`, `epoch`, `global_step`, `pytorch-lightning_version` and, when `what`
/// holds optimizers that PyTorch knows too (SGD, Adam, AdamW, RMSprop, Adagrad), `optimizer_states`
/// and `lr_schedulers` (empty). Learned numbers keep their bits. Takes memory for the weights once
/// more. Throws user_error (checkpoint) that names the tensor or the entry that does not fit.
std::vector<std::shared_ptr<const std::vector<std::byte>>> encode_torch_checkpoint(
    const snapshot& what);

}  // namespace troupe
