// The strategy of ranks that each hold the whole model and a part of every batch. Gradients are
// weighted by true sample counts and summed bucket by bucket while backward runs.
#pragma once

#include <map>
#include <optional>

#include "troupe/detail/powersgd.hpp"
#include "troupe/detail/reducer.hpp"
#include "troupe/strategy.hpp"

namespace troupe {

class gradient_watch;

/// How data_parallel exchanges gradients and buffers.
struct data_parallel_options {
  /// Buckets and what sums them.
  reducer_options gradients;
  /// After each step all ranks get the buffers of rank 0.
  bool broadcast_buffers = true;
  /// At the start all ranks get the parameters and buffers of rank 0. In any case their names,
  /// shapes and dtypes must be alike.
  bool sync_module_states = true;
  /// Sums, clips and updates in one pass. Unset: where that is possible and the module's
  /// reads_gradients returns false. Never in jobs that can restart.
  std::optional<bool> fused_step = false;
};
/// From a trainer's options. Throws user_error (bad_configuration) for unknown hooks.
data_parallel_options data_parallel_options_of(const gradient_options& from);
/// Throws user_error (bad_configuration) if the options demand a fused step, PowerSGD or unequal
/// starts in a job that can restart: a rank that joins would lack their state.
void refuse_unrecoverable(const trainer_options& options);

/// With one rank it works as single_device: no communication, no buckets.
class data_parallel : public strategy {
public:
  /// The defaults of `options` are not those of a job: default_strategies uses
  /// data_parallel_options_of.
  explicit data_parallel(strategy_parts parts, data_parallel_options options = {});
  ~data_parallel() override;

  std::string_view name() const override { return "data_parallel"; }

  void bind(std::shared_ptr<communicator> world, generation_id generation) override;
  void model_to_device() override;
  void setup_optimizers(optimizers& which) override;

  void use_comm_hook(comm_hook hook, bool with_state) override;

  /// Steps: batch norms that convert_sync_batch_norm replaced, and sync_batch_norm layers of the
  /// module, compute over the ranks that have samples in the micro-batch.
  void begin_batch(const subgroup& with_samples) override { batch_ranks_ = with_samples; }
  step_output training_step(const batch& b, std::int64_t index) override;
  step_output validation_step(const batch& b, std::int64_t index) override;
  step_output test_step(const batch& b, std::int64_t index) override;
  value predict_step(const batch& b, std::int64_t index) override;

  void zero_gradients(std::int32_t optimizer) override;
  step_status backward(const at::Tensor& loss, const backward_plan& plan) override;
  void manual_backward(const at::Tensor& loss, double weight) override;
  void clip_gradients(torch::optim::Optimizer& optimizer, double limit,
                      hooks::clip_gradients::algorithm how) override;
  void optimizer_step(torch::optim::Optimizer& optimizer, std::int32_t index,
                      const step_closure& closure, troupe::module& model) override;
  void synchronize_buffers() override;
  std::vector<tensor_blob> module_state() override;
  std::chrono::nanoseconds waited() const override;

  value reduce(const value& what, std::string_view operation, const subgroup& among) override;
  value broadcast(const value& what, std::int32_t source, const subgroup& among) override;
  value all_gather(const value& what, bool gradients, const subgroup& among) override;
  bool reduce_boolean_decision(bool yes, decision by, const subgroup& among) override;
  void barrier(std::string_view label, std::chrono::nanoseconds deadline,
               const subgroup& among) override;
  std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> mine) override;

  /// In manual optimization with several ranks: throws a user_error (job_failed) if a parameter of
  /// the optimizer has a gradient as a backward left it that was not manual_backward's. A class
  /// that is derived from this one sums as it likes: it is not checked.
  void refuse_unsummed(const torch::optim::Optimizer& optimizer) const;

  /// Figures of the exchange so far.
  reducer::figures gradient_figures() const;
  /// Whether steps of this optimizer sum, clip and update in one pass.
  bool fuses(std::int32_t optimizer) const;

private:
  friend struct gather_with_gradients;

  bool alone() const { return world() == 1; }
  communicator& collectives() const;
  std::chrono::nanoseconds clock() const;
  std::vector<at::Tensor> buffers() const;
  void lay_out_gradients();
  void look_at_parameters(std::int32_t index);
  std::vector<at::Tensor> trained_parameters() const;
  void set_up_manual();
  void sum_gradients(const std::vector<at::Tensor>& parameters);
  void fuse_steps();
  std::string obstacle_to_fusing(const torch::optim::Optimizer& optimizer) const;
  std::shared_ptr<void> join_batch_norms() const;
  /// Null where steps are not fused.
  struct fused;
  fused* fused_of(const torch::optim::Optimizer& optimizer);
  void agree_on_module();
  void agree_on_shape(const at::Tensor& tensor, std::string_view operation,
                      const subgroup& among) const;
  void broadcast_in_place(const std::vector<at::Tensor>& tensors) const;
  at::Tensor gather(const at::Tensor& mine, const subgroup& among) const;
  at::Tensor sum(const at::Tensor& mine, const subgroup& among) const;

  data_parallel_options options_;
  std::shared_ptr<communicator> world_;
  std::shared_ptr<communicator> host_;  // between the same ranks, for memory of the host
  subgroup batch_ranks_;                // those that run the next step
  std::unique_ptr<reducer> gradients_;
  std::unique_ptr<gradient_watch> watch_;                     // in manual optimization
  std::map<const c10::TensorImpl*, std::uint64_t> laid_out_;  // the optimizers of each, in bits
  std::vector<std::size_t> counts_;                           // parameters, by optimizer
  std::vector<std::unique_ptr<fused>> fused_;                 // by optimizer
  std::chrono::nanoseconds waited_{0};                        // outside of gradients_
};

}  // namespace troupe
