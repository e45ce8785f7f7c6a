// An accelerator to which a module that was made on the host cannot be moved. LibTorch replaces the
// memory of a tensor, but not its kind, so a module of such a device is made there.
//
// Such a device collects operators of one thread at a time. So each rank has a device of its own,
// and with more shards than ranks each shard.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "troupe/accelerator.hpp"

namespace troupe {

/// A second base of such an accelerator. Its ranks evaluate without gradients, but outside of
/// LibTorch's inference mode.
class module_creation {
public:
  virtual ~module_creation() = default;
  /// While the scope exists, tensors that this thread makes without naming a device are made on
  /// `device`. Their numbers are those that they would have on the host, random ones included. The
  /// rank holds one where it makes its module and in configure_model. Not for tensors that are made
  /// from numbers in memory, such as torch::tensor({1, 2}): a module gives them the device.
  virtual std::unique_ptr<accelerator::scope> create_on(c10::Device device) const = 0;
};

}  // namespace troupe
