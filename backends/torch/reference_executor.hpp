// Computes the result that every run must have in the simplest way: one thread, one shard after the
// other, no actors, no communicator. Tests use it as their oracle.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "troupe/data.hpp"
#include "troupe/value.hpp"

namespace troupe {

/// The settings of a run that its numbers depend on.
struct reference_run {
  std::function<std::shared_ptr<torch::nn::Module>()> make_module;
  /// A step: the mean loss over the samples of one shard's micro-batch.
  std::function<at::Tensor(torch::nn::Module& module, const value& batch, std::int64_t index)> loss;
  std::function<std::shared_ptr<torch::optim::Optimizer>(torch::nn::Module& module)> make_optimizer;
  dataset_ptr data;

  std::uint64_t seed = 0;
  std::int64_t shards = 1;  ///< ranks
  std::int64_t batch_size = 64;
  std::int64_t accumulate_grad_batches = 1;
  std::int64_t max_epochs = 1;
  std::optional<std::int64_t> max_steps;
  std::optional<std::int64_t> batches_per_epoch;  ///< limit_train_batches, as a count
  std::optional<double> clip_norm;
  std::vector<tensor_blob> initial;  ///< weights to start from; empty: the module's own
  /// Called after each optimizer step with the number of finished steps, for schedulers. May be
  /// empty.
  std::function<void(torch::optim::Optimizer& optimizer, std::int64_t steps)> after_step;
  /// Called after each complete epoch. May be empty.
  std::function<void()> after_epoch;
};

struct reference_outcome {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::int64_t epochs = 0;     ///< complete ones
  std::vector<double> losses;  ///< of each step: the mean over its samples
  std::vector<tensor_blob> model;
  std::vector<tensor_blob> optimizer;
  std::string optimizer_groups;
};

/// Runs on the calling thread, which it sets up like a lane's during the call. The program's
/// default generator is not used. Gradients of a window of micro-batches: each shard's sum of
/// (n / N) times the gradient of its mean loss, then the canonical tree over shards. A shard that
/// did not use a parameter adds zeros; a parameter that no shard used is not stepped. Each shard
/// has its own buffers until the step; after it, all have shard 0's. Random draws are keyed by
/// (seed, epoch, batch, shard, "training_step"), initialisation by (seed).
reference_outcome execute(const reference_run& run);

}  // namespace troupe
