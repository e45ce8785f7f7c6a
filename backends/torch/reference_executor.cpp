#include "backends/torch/reference_executor.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <bit>
#include <span>

#include "backends/torch/lane_thread.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/rank_random.hpp"
#include "troupe/detail/optimizer_state.hpp"

namespace troupe {

namespace {

/// A second, independent implementation of the canonical tree: split at the largest power of two
/// below the count.
at::Tensor tree_sum(std::span<const at::Tensor> leaves) {
  if (leaves.size() == 1) return leaves[0];
  const auto left = std::bit_floor(leaves.size() - 1);
  return tree_sum(leaves.first(left)).add(tree_sum(leaves.subspan(left)));
}

at::Tensor reduce(std::vector<at::Tensor> leaves) {
  const auto type = leaves[0].scalar_type();
  const bool small = type == at::kHalf || type == at::kBFloat16;
  if (small && leaves.size() > 1)
    for (auto& leaf : leaves) leaf = leaf.to(at::kFloat);
  return tree_sum(leaves).to(type);
}

class executor {
public:
  explicit executor(const reference_run& run)
      : run_(run),
        random_(run.seed),
        scope_(random_),
        layout_{run.data->size(), run.shards, run.batch_size} {
    for (std::int64_t shard = 0; shard < run.shards; ++shard) {
      random_.reset_for_initialisation();
      replicas_.push_back(run.make_module());
      replicas_.back()->train();
      loaders_.push_back(std::make_unique<loader>(
          run.data, loader::options{run.seed, true, layout_, shard, /*prefetch=*/0}));
    }
    if (!run.initial.empty()) load_state(*replicas_[0], run.initial);
    share_state();
    optimizer_ = run.make_optimizer(*replicas_[0]);
  }

  reference_outcome all() {
    for (std::int64_t epoch = 0; epoch < run_.max_epochs && !done(); ++epoch) walk(epoch);
    outcome_.model = state_of(*replicas_[0]);
    auto kept = state_of(*optimizer_, *replicas_[0], 0);
    outcome_.optimizer = std::move(kept.tensors);
    outcome_.optimizer_groups = std::move(kept.groups);
    return std::move(outcome_);
  }

private:
  bool done() const { return run_.max_steps && outcome_.steps >= *run_.max_steps; }

  void walk(std::int64_t epoch) {
    const auto batches =
        std::min(layout_.batches(), run_.batches_per_epoch.value_or(layout_.batches()));
    for (auto& each : loaders_) each->begin(epoch, 0, batches);
    for (std::int64_t first = 0; first < batches; first += run_.accumulate_grad_batches) {
      if (done()) return;
      step(epoch, first, std::min(first + run_.accumulate_grad_batches, batches) - 1);
    }
    ++outcome_.epochs;
    if (run_.after_epoch) run_.after_epoch();
  }

  void step(std::int64_t epoch, std::int64_t first, std::int64_t last) {
    for (auto& replica : replicas_)
      for (auto& parameter : replica->parameters()) parameter.mutable_grad() = at::Tensor{};
    const auto samples = layout_.samples(first, last);
    double loss = 0;
    for (auto batch = first; batch <= last; ++batch)
      for (std::size_t shard = 0; shard < replicas_.size(); ++shard)
        loss += backward(epoch, batch, shard, static_cast<double>(samples));
    reduce_gradients();
    if (run_.clip_norm)
      torch::nn::utils::clip_grad_norm_(replicas_[0]->parameters(), *run_.clip_norm);
    optimizer_->step();
    share_state();
    ++outcome_.steps;
    outcome_.samples += samples;
    outcome_.losses.push_back(loss);
    if (run_.after_step) run_.after_step(*optimizer_, outcome_.steps);
  }

  double backward(std::int64_t epoch, std::int64_t batch, std::size_t shard, double samples) {
    const auto item = loaders_[shard]->next();
    if (item.samples == 0) return 0;
    random_.reset({epoch, batch, static_cast<std::int64_t>(shard), "training_step"});
    const auto loss = run_.loss(*replicas_[shard], item.batch, batch);
    const auto weight = static_cast<double>(item.samples) / samples;
    (weight == 1 ? loss : loss * weight).backward();
    return weight * loss.item<double>();
  }

  void reduce_gradients() {
    std::vector<std::vector<at::Tensor>> all;
    for (const auto& replica : replicas_) all.push_back(replica->parameters());
    for (std::size_t i = 0; i < all[0].size(); ++i) {
      std::vector<at::Tensor> leaves;
      bool used = false;
      for (const auto& parameters : all) {
        const auto& grad = parameters[i].grad();
        used |= grad.defined();
        leaves.push_back(grad.defined() ? grad : at::zeros_like(parameters[i]));
      }
      if (used) all[0][i].mutable_grad() = reduce(std::move(leaves));
    }
  }

  void share_state() {
    const at::NoGradGuard no_grad;
    const auto parameters = replicas_[0]->parameters(), buffers = replicas_[0]->buffers();
    for (std::size_t shard = 1; shard < replicas_.size(); ++shard) {
      const auto mine = replicas_[shard]->parameters(), my_buffers = replicas_[shard]->buffers();
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i].detach().copy_(parameters[i]);
      for (std::size_t i = 0; i < my_buffers.size(); ++i) my_buffers[i].copy_(buffers[i]);
    }
  }

  const reference_run& run_;
  lane_thread setup_;
  rank_random random_;
  random_scope scope_;
  data_layout layout_;
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  std::vector<std::unique_ptr<loader>> loaders_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  reference_outcome outcome_;
};

}  // namespace

reference_outcome execute(const reference_run& run) { return executor{run}.all(); }

}  // namespace troupe
