// Batch norm whose statistics are those of the whole batch, where each rank of a job or each copy
// of a replicated module has a part of it. Outputs, gradients and running statistics are those of
// batch norm over the joined batch, within rounding. Equal runs give equal bits: parts are merged
// in a fixed order.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "troupe/communicator.hpp"
#include "troupe/replicated.hpp"

namespace troupe {

/// How eps enters the standard deviation of synchronised statistics. Batch norm over one part, and
/// in evaluation, always uses `plus`.
enum class batch_norm_eps : std::uint8_t {
  plus,   ///< 1 / sqrt(variance + eps), as in PyTorch
  clamp,  ///< 1 / sqrt(max(variance, eps)), jactorch's default
};

/// What a sync_batch_norm computes, and with whom.
struct sync_batch_norm_options {
  /// Features, eps, momentum (unset: cumulative average), affine, track_running_stats: see
  /// torch::nn::BatchNormOptions.
  torch::nn::BatchNormOptions norm;
  /// Input has `dims` dimensions beyond (samples, features): 1 takes (N, C) and (N, C, L), 2 and 3
  /// take all of theirs, 0 takes any.
  std::int64_t dims = 0;
  /// Applies to synchronised statistics only.
  batch_norm_eps eps_mode = batch_norm_eps::plus;
  /// The ranks whose parts belong together; empty: all. Each rank names the group that it is in.
  subgroup among;
};

/// Parts are, in training:
/// - the copies of a `replicated` module: through on_replicate;
/// - the ranks of a job: within a sync_batch_norm_scope, which data_parallel holds around steps;
/// - both: the copies of all ranks.
/// Otherwise, and in evaluation, it is LibTorch's batch norm. Input is (N, C, ...) and may have no
/// samples (N = 0) in some parts. All parts together have at least two values per channel, else
/// forward throws user_error in each part.
///
/// Ranks: forward and backward each wait for one collective of the group. Every rank of the group
/// runs both equally often, with input that requires a gradient on all ranks or on none; a rank
/// that does not is named at the communicator's deadline. Backward runs in the lane's thread.
class sync_batch_norm_impl : public torch::nn::Cloneable<sync_batch_norm_impl>,
                             public replication_aware {
public:
  /// New parameters and buffers, see reset.
  explicit sync_batch_norm_impl(sync_batch_norm_options options);
  /// Over tensors that exist, of the shapes below.
  struct tensors {
    /// Undefined: there is none.
    /// @{
    at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
    /// @}
  };
  /// Registers the tensors of `state` themselves. A weight or bias keeps its requires_grad.
  sync_batch_norm_impl(sync_batch_norm_options options, const tensors& state);

  /// The output, of the input's shape. Throws user_error for another shape or too few values.
  at::Tensor forward(const at::Tensor& input);

  /// LibTorch's initial values: weight 1, bias 0, mean 0, variance 1, no batches.
  void reset() override;
  /// The mode of this layer, and of the batch norm that it replaced.
  void train(bool on = true) override;
  /// A copy, on `device` if given. Of a converted layer: of the batch norm that it replaced.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override;
  /// One line for people.
  void pretty_print(std::ostream& stream) const override;
  void on_replicate(const std::shared_ptr<replication_context>& context,
                    std::int64_t copy_id) override;

  /// As they were given; read in each forward. After a conversion they follow changes of momentum
  /// and eps of the batch norm.
  sync_batch_norm_options options;
  /// (C); undefined if not affine.
  /// @{
  at::Tensor weight, bias;
  /// @}
  /// (C), (C) and a scalar; undefined if not tracked.
  /// @{
  at::Tensor running_mean, running_var, num_batches_tracked;
  /// @}

private:
  friend class sync_batch_norm_scope;
  friend struct sync_layers;
  /// The batch norm that a converter replaced; null in a layer that a program made itself.
  struct replaced_norm;
  /// The ranks of a scope.
  struct rank_group;

  void take(const tensors& state);
  at::Tensor synchronised(const at::Tensor& input, double factor);
  void update(const at::Tensor& merged, double factor);

  std::shared_ptr<replaced_norm> replaced_;
  std::shared_ptr<const rank_group> ranks_;
  std::shared_ptr<replication_context> context_;
  std::int64_t copy_ = 0;
};
/// `sync_batch_norm`, which holds a sync_batch_norm_impl as LibTorch's modules hold theirs.
TORCH_MODULE_IMPL(sync_batch_norm, sync_batch_norm_impl);

/// Options of convert_sync_batch_norm.
struct sync_batch_norm_conversion {
  /// For every layer: see sync_batch_norm_options::among.
  subgroup among;
  /// For every layer: see sync_batch_norm_options::eps_mode.
  batch_norm_eps eps_mode = batch_norm_eps::plus;
};

/// Replaces every BatchNorm1d, 2d and 3d below `module`, at any depth, by a sync_batch_norm with
/// the same name, parameters and buffers. Returns their number.
/// - Names, state and optimizers are those of before.
/// - Members and Sequentials of the module still hold the former batch norm. Its calls are routed
///   to the sync_batch_norm within a sync_batch_norm_scope and in copies of `replicated`;
///   elsewhere they compute ordinary batch norm.
/// - A clone() is not converted; copies of `replicated` are.
/// Throws user_error if `module` is a batch norm itself.
std::size_t convert_sync_batch_norm(torch::nn::Module& module,
                                    const sync_batch_norm_conversion& how = {});

/// While it exists, in the thread that made it, the synchronised batch norms of `module` have the
/// ranks `members` of `world` as their parts (empty: all), or those of them that
/// sync_batch_norm_options::among names. Without a communicator each layer has the parts of its
/// copies only. data_parallel holds one around training, validation, test and predict steps; hooks
/// that run the module in training mode, and programs without a job, make their own. Backward needs
/// no scope. Destroyed in the thread that made it, in reverse order.
class sync_batch_norm_scope {
public:
  /// By default no communicator. `world` is kept alive as long as the scope.
  explicit sync_batch_norm_scope(torch::nn::Module& module,
                                 std::shared_ptr<communicator> world = nullptr,
                                 const subgroup& members = {});
  ~sync_batch_norm_scope();
  sync_batch_norm_scope(const sync_batch_norm_scope&) = delete;
  sync_batch_norm_scope& operator=(const sync_batch_norm_scope&) = delete;

  struct routes;

private:
  std::unique_ptr<routes> routes_;
};

}  // namespace troupe
