// Converts a module's state to blobs and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "troupe/value.hpp"

namespace torch::nn {
class Module;
}

namespace troupe {

/// Parameters and buffers, as state_of orders and names them. Not copied.
std::vector<std::pair<std::string, at::Tensor>> state_tensors(const torch::nn::Module& module);
/// Copies of parameters and buffers under dotted names, in the order of a PyTorch state_dict: each
/// module's own parameters, its buffers, then its children. A tensor with two names appears under
/// both.
std::vector<tensor_blob> state_of(const torch::nn::Module& module);

/// Whether the blobs must match the module's keys exactly.
enum class matching : std::uint8_t { exact, partial };

/// Keys that `partial` matching left alone.
struct unmatched {
  std::vector<std::string> missing;     ///< the module's, not among the blobs
  std::vector<std::string> unexpected;  ///< among the blobs, not the module's
};

/// Writes the blobs into the module's parameters and buffers, and keeps their dtypes and devices.
/// Throws user_error (checkpoint) that names the keys that are missing or unexpected (unless
/// partial) or have another shape; then nothing is written.
unmatched load_state(torch::nn::Module& module, const std::vector<tensor_blob>& state,
                     matching how = matching::exact);

}  // namespace troupe
