// What any run must end with, computed the plain way: one thread, one shard after the other, no
// actors, no communicator. The oracle of tests.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "troupe/data.hpp"
#include "troupe/snapshot.hpp"

namespace troupe {

/// A run, as far as its numbers go.
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
  /// Behind each optimizer step, with the steps done: schedulers. May be empty.
  std::function<void(torch::optim::Optimizer& optimizer, std::int64_t steps)> after_step;
  /// Behind each epoch that was walked to its end.
  std::function<void()> after_epoch;
};

struct reference_outcome {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::int64_t epochs = 0;     ///< walked to their end
  std::vector<double> losses;  ///< of each step: the mean over its samples
  std::vector<tensor_blob> model;
  std::vector<tensor_blob> optimizer;
  std::string optimizer_groups;
};

/// Runs on the calling thread, which it sets up like a lane's while it lasts. The host's generator
/// is left alone. Gradients of a window of micro-batches: each shard's sum of (n / N) times the
/// gradient of its mean loss, then the canonical tree over shards; a shard that has not used a
/// parameter adds zeros, and what no shard has used is not stepped. Shards have buffers of their
/// own until the step, then shard 0's. Draws are keyed by (seed, epoch, batch, shard,
/// "training_step"), initialisation by (seed).
reference_outcome execute(const reference_run& run);

}  // namespace troupe
