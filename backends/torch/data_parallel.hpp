// Ranks that each hold the whole model and a part of every batch. Gradients are weighted by true
// sample counts and summed bucket by bucket while backward runs; see reducer.hpp.
#pragma once

#include "backends/torch/reducer.hpp"
#include "backends/torch/strategy.hpp"

namespace troupe {

struct data_parallel_options {
  reducer_options gradients;
  /// Buffers become rank 0's behind each step.
  bool broadcast_buffers = true;
};

/// With one rank it is single_device: nothing travels, nothing is laid out in buckets.
class data_parallel : public strategy {
public:
  explicit data_parallel(strategy_parts parts, data_parallel_options options = {});
  ~data_parallel() override;

  std::string_view name() const override { return "data_parallel"; }

  void bind(std::shared_ptr<communicator> world, generation_id generation) override;
  void model_to_device() override;
  void setup_optimizers(optimizers& which) override;

  void zero_gradients(std::int32_t optimizer) override;
  step_word backward(const at::Tensor& loss, const backward_plan& plan) override;
  void synchronize_buffers() override;

  value reduce(const value& what, std::string_view operation, const subgroup& among) override;
  value broadcast(const value& what, std::int32_t source, const subgroup& among) override;
  value all_gather(const value& what, bool gradients, const subgroup& among) override;
  bool reduce_boolean_decision(bool decision, bool all, const subgroup& among) override;
  void barrier(std::string_view label, std::chrono::nanoseconds deadline,
               const subgroup& among) override;
  std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> mine) override;

  /// The module as a submodule called `module`: keys of its parameters begin so.
  std::shared_ptr<torch::nn::Module> wrapped_module() const override;

  /// How gradients travelled so far.
  reducer::figures gradient_figures() const;

private:
  friend struct gather_with_gradients;

  bool alone() const { return world() == 1; }
  communicator& collectives() const;
  void lay_out_gradients();
  void agree_on_module();
  void agree_on_shape(const at::Tensor& tensor, std::string_view operation,
                      const subgroup& among) const;
  void broadcast_in_place(const std::vector<at::Tensor>& tensors) const;
  at::Tensor gather(const at::Tensor& mine, const subgroup& among) const;
  at::Tensor sum(const at::Tensor& mine, const subgroup& among) const;

  data_parallel_options options_;
  std::shared_ptr<communicator> world_;
  std::unique_ptr<reducer> gradients_;
  mutable std::shared_ptr<torch::nn::Module> wrapped_;
};

}  // namespace troupe
