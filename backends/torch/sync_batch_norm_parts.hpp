// What sync_batch_norm_impl keeps out of the public header.
#pragma once

#include <functional>

#include "troupe/sync_batch_norm.hpp"

namespace troupe {

/// The members are always listed. A group of some ranks has an order of operations of its own. One
/// of all ranks shares that of the gradients' collectives, so all ranks have to use the same
/// parameters where these leave during backward (strategy.overlap).
struct sync_batch_norm_impl::rank_group {
  std::shared_ptr<communicator> world;
  subgroup members;

  at::Tensor gather(const at::Tensor& mine) const;
};

/// A module's members call the former batch norm, whose forward is not virtual. While its calls are
/// routed, it is in evaluation mode: LibTorch then neither refuses a part of one value per channel
/// nor counts batches.
struct sync_batch_norm_impl::replaced_norm {
  /// Begins or ends the routing. Returns the tensor by which a call is recognised.
  std::function<at::Tensor(bool on)> route;
  std::function<void(bool on)> train;
  /// Gives the layer the mode of the former batch norm, and its momentum and eps if they changed
  /// since the last call: a user may have set them there. Not while its calls are routed.
  std::function<void(sync_batch_norm_impl& layer)> follow;
  /// A clone of the former batch norm, which is what a clone of the module around it expects.
  std::function<std::shared_ptr<torch::nn::Module>(const std::optional<c10::Device>&)> clone;
  bool routed = false;
  at::Tensor mark;  ///< what `route` returned, while it is routed
};

}  // namespace troupe
