// Checkpoints as Python's torch.load(FILE, weights_only=True) opens them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "troupe/value.hpp"

namespace troupe {

/// The file's bytes, in pieces to be written one after the other. A dictionary with Lightning's
/// keys: `state_dict`, `epoch`, `global_step`, `pytorch-lightning_version` and, if all optimizers
/// of `what` exist in PyTorch too (SGD, Adam, AdamW, RMSprop, Adagrad), `optimizer_states` and
/// `lr_schedulers` (empty). Weights keep their bits. Needs memory for one more copy of the weights.
/// Throws user_error (checkpoint) that names the tensor or the entry that cannot be stored.
std::vector<std::shared_ptr<const std::vector<std::byte>>> encode_torch_checkpoint(
    const snapshot& what);

}  // namespace troupe
