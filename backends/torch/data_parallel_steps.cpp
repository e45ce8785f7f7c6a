#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/collective_wait.hpp"
#include "backends/torch/fused_step.hpp"
#include "backends/torch/gradient_watch.hpp"
#include "troupe/communicator.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/module.hpp"
#include "troupe/sync_batch_norm.hpp"

namespace troupe {

struct data_parallel::fused {
  fused(std::shared_ptr<communicator> world, torch::optim::Optimizer& optimizer)
      : of(&optimizer), step(std::move(world), optimizer) {}

  const torch::optim::Optimizer* of;
  fused_step step;
  bool due = false;  // it has gradients that are not summed yet
};

data_parallel_options data_parallel_options_of(const gradient_options& from) {
  data_parallel_options options;
  if (from.bucket_cap_mb)
    options.gradients.bucket_bytes = static_cast<std::size_t>(*from.bucket_cap_mb * (1 << 20));
  options.gradients.overlap = from.overlap;
  options.gradients.find_unused_parameters = from.find_unused_parameters;
  options.gradients.static_graph = from.static_graph;
  options.gradients.hook = comm_hook_of(from);
  options.broadcast_buffers = from.broadcast_buffers;
  options.sync_module_states = from.sync_module_states;
  options.fused_step = from.fused_step;
  return options;
}

void refuse_unrecoverable(const trainer_options& options) {
  if (options.checkpoint.on_exception && options.gradients.fused_step.value_or(false))
    throw user_error(errc::bad_configuration,
                     "strategy.fused_step = true keeps no state of the last step that "
                     "checkpoint.on_exception could save: leave one of them out");
  if (!options.elastic.enabled()) return;
  if (options.gradients.comm_hook == comm_hook_kind::powersgd)
    throw user_error(errc::bad_configuration,
                     "strategy.comm_hook = \"powersgd\" keeps on each rank what it has not sent "
                     "yet, so a job that loses a rank could not go on: use another hook, or set "
                     "elastic.max_restarts to 0");
  if (options.gradients.comm_hook == comm_hook_kind::noop)
    throw user_error(errc::bad_configuration,
                     "strategy.comm_hook = \"noop\" lets each rank train weights of its own, so a "
                     "job that loses a rank could not go on: use another hook, or set "
                     "elastic.max_restarts to 0");
  if (!options.gradients.broadcast_buffers)
    throw user_error(errc::bad_configuration,
                     "strategy.broadcast_buffers = false lets each rank have buffers of its own, "
                     "so a job that loses a rank could not go on: leave it out or set it to true, "
                     "or set elastic.max_restarts to 0");
  if (!options.gradients.sync_module_states)
    throw user_error(errc::bad_configuration,
                     "strategy.sync_module_states = false lets ranks have weights of their own, so "
                     "a job that loses a rank could not go on: leave it out or set it to true, or "
                     "set elastic.max_restarts to 0");
  if (!options.gradients.fused_step.value_or(false)) return;
  throw user_error(errc::bad_configuration,
                   "strategy.fused_step = true keeps the optimizer's state on rank 0 only, so a "
                   "job that loses rank 0 could not go on: leave it out or set it to false, or set "
                   "elastic.max_restarts to 0");
}

namespace {

std::size_t count_of(const torch::optim::Optimizer& optimizer) {
  std::size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
}

}  // namespace

data_parallel::data_parallel(strategy_parts parts, data_parallel_options options)
    : strategy(std::move(parts)), options_(std::move(options)) {
  if (!options_.gradients.now) options_.gradients.now = about().now;
}

data_parallel::~data_parallel() = default;

void data_parallel::bind(std::shared_ptr<communicator> world, generation_id generation) {
  strategy::bind(world, generation);
  waited_ = waited();
  fused_.clear();
  gradients_.reset();
  world_ = std::move(world);
  host_ = host_collectives(world_);
  if (optimizers_in_use()) lay_out_gradients();
}

void data_parallel::lay_out_gradients() {
  if (alone()) return;
  if (!bare_module()->automatic_optimization()) return set_up_manual();
  const auto& all = optimizers_in_use()->all();
  if (all.size() > 64)
    throw user_error(errc::job_failed, "at most 64 optimizers can be trained data-parallel");
  std::vector<reducer::parameter> parameters;
  std::unordered_map<c10::TensorImpl*, std::size_t> place;
  const auto add = [&](std::string name, const at::Tensor& tensor, std::uint64_t bit) {
    if (!tensor.defined()) return;
    const auto [known, fresh] = place.try_emplace(tensor.unsafeGetTensorImpl(), parameters.size());
    if (fresh) parameters.push_back({std::move(name), tensor, 0});
    parameters[known->second].optimizers |= bit;
  };
  for (const auto& item : bare_module()->named_parameters()) add(item.key(), item.value(), 0);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const auto& group : all[i].optimizer->param_groups())
      for (const auto& parameter : group.params())
        add(fmt::format("optimizer {}'s own", i), parameter, std::uint64_t{1} << i);
  counts_.clear();
  for (const auto& one : all) counts_.push_back(count_of(*one.optimizer));
  laid_out_.clear();
  for (const auto& one : parameters) laid_out_[one.tensor.unsafeGetTensorImpl()] = one.optimizers;
  waited_ = waited();
  fuse_steps();
  auto options = options_.gradients;
  // A rank that goes on after a failure keeps its state of the last step: the sums must be there.
  if (!about().options.elastic.enabled()) options.devices = parts().place.kind;
  for (std::size_t i = 0; i < fused_.size(); ++i)
    if (fused_[i]) options.summed_elsewhere |= std::uint64_t{1} << i;
  gradients_ = std::make_unique<reducer>(std::move(parameters), world_, std::move(options));
}

void data_parallel::use_comm_hook(comm_hook hook, bool with_state) {
  const auto refuse = [](std::string_view why) {
    throw user_error(errc::job_failed, fmt::format("register_comm_hook: {}", why));
  };
  if (with_state && about().options.elastic.enabled())
    refuse(
        "a job that can restart loses the hook's state with a rank: give it a state of an empty "
        "type, or set elastic.max_restarts to 0");
  if (options_.gradients.hook)
    refuse("there is a hook already: register one, and set strategy.comm_hook to none but it");
  if (options_.fused_step.value_or(false))
    refuse("a fused step sums gradients itself: leave strategy.fused_step out");
  if (bare_module() && !bare_module()->automatic_optimization())
    refuse("manual_backward sums whole gradients: leave the hook out");
  if (gradients_ && gradients_->seen().stepped)
    refuse("a step was made already: register it in setup or configure_optimizers");
  options_.gradients.hook = std::move(hook);
  if (gradients_) lay_out_gradients();
}

std::string data_parallel::obstacle_to_fusing(const torch::optim::Optimizer& optimizer) const {
  if (options_.gradients.hook) return "a communication hook is set";
  if (!options_.sync_module_states)
    return "it gives all ranks rank 0's parameters, and strategy.sync_module_states is false";
  const auto& in_use = precision_in_use();
  if (typeid(in_use) != typeid(precision) && in_use.name() != "bf16-mixed")
    return fmt::format("the precision is {}, not 32-true or bf16-mixed", in_use.name());
  return fused_step::obstacle(optimizer, *world_);
}

void data_parallel::fuse_steps() {
  fused_.clear();
  refuse_unrecoverable(about().options);
  const bool demanded = options_.fused_step.value_or(false);
  for (const auto& one : optimizers_in_use()->all()) {
    fused_.emplace_back();
    if (keeps_points(about().options)) continue;
    if (!options_.fused_step.value_or(!bare_module()->gradients_are_read())) continue;
    const auto obstacle = obstacle_to_fusing(*one.optimizer);
    if (obstacle.empty())
      fused_.back() = std::make_unique<fused>(world_, *one.optimizer);
    else if (demanded)
      throw user_error(errc::bad_configuration,
                       fmt::format("strategy.fused_step = true is not possible: {}; leave it out "
                                   "or set it to false",
                                   obstacle));
  }
}

data_parallel::fused* data_parallel::fused_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& one : fused_)
    if (one && one->of == &optimizer) return one.get();
  return nullptr;
}

bool data_parallel::fuses(std::int32_t optimizer) const {
  return static_cast<std::size_t>(optimizer) < fused_.size() && fused_[optimizer];
}

// Not the ranks without samples: they run no step.
std::shared_ptr<void> data_parallel::join_batch_norms() const {
  if (alone() || !world_) return nullptr;
  return std::make_shared<sync_batch_norm_scope>(*bare_module(), host_, batch_ranks_);
}

step_output data_parallel::training_step(const batch& b, std::int64_t index) {
  const auto joined = join_batch_norms();
  if (watch_) watch_->add(trained_parameters());
  return strategy::training_step(b, index);
}

step_output data_parallel::validation_step(const batch& b, std::int64_t index) {
  const auto joined = join_batch_norms();
  return strategy::validation_step(b, index);
}

step_output data_parallel::test_step(const batch& b, std::int64_t index) {
  const auto joined = join_batch_norms();
  return strategy::test_step(b, index);
}

value data_parallel::predict_step(const batch& b, std::int64_t index) {
  const auto joined = join_batch_norms();
  return strategy::predict_step(b, index);
}

// A hook may have added a group of parameters, as one that unfreezes layers does.
void data_parallel::look_at_parameters(std::int32_t index) {
  auto& optimizer = *optimizers_in_use()->all().at(static_cast<std::size_t>(index)).optimizer;
  if (count_of(optimizer) == counts_.at(static_cast<std::size_t>(index))) return;
  bool added = false;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      const auto known = laid_out_.find(parameter.unsafeGetTensorImpl());
      if (known == laid_out_.end())
        throw user_error(errc::job_failed,
                         fmt::format("optimizer {} has a parameter that was made after its set-up, "
                                     "when ranks got equal weights: register it in the module's "
                                     "constructor or in configure_model",
                                     index));
      added |= (known->second >> index & 1) == 0;
    }
  counts_[static_cast<std::size_t>(index)] = count_of(optimizer);
  if (!added) return;
  if (fused_of(optimizer))
    throw user_error(errc::job_failed,
                     fmt::format("optimizer {} got parameters after its set-up, and its steps are "
                                 "fused: set strategy.fused_step to false",
                                 index));
  lay_out_gradients();
}

void data_parallel::zero_gradients(std::int32_t optimizer) {
  if (!gradients_) return strategy::zero_gradients(optimizer);
  look_at_parameters(optimizer);
  gradients_->zero(optimizer);
}

step_status data_parallel::backward(const at::Tensor& loss, const backward_plan& plan) {
  if (!gradients_) return strategy::backward(loss, plan);
  const bool fuse = fuses(plan.optimizer);
  if (plan.synchronize)
    gradients_->begin({plan.optimizer, {plan.wants_stop, plan.loss, plan.logged}, loss});
  try {
    strategy::backward(loss, plan);
  } catch (...) {
    gradients_->abandon();
    throw;
  }
  if (!plan.synchronize) return {};
  const auto word = gradients_->finish();
  if (fuse) fused_[plan.optimizer]->due = true;
  return {word.stop, word.loss, word.logged};
}

void data_parallel::clip_gradients(torch::optim::Optimizer& optimizer, double limit,
                                   hooks::clip_gradients::algorithm how) {
  refuse_unsummed(optimizer);
  if (auto* one = fused_of(optimizer)) return one->step.clip(limit, how);
  strategy::clip_gradients(optimizer, limit, how);
}

void data_parallel::optimizer_step(torch::optim::Optimizer& optimizer, std::int32_t index,
                                   const step_closure& closure, troupe::module& model) {
  auto* one = fused_of(optimizer);
  if (!one) return strategy::optimizer_step(optimizer, index, closure, model);
  {
    const at::AutoGradMode with_gradients{true};
    closure();
  }
  one->step.run();
  one->due = false;
}

// --- manual optimization -------------------------------------------------------------------------

void data_parallel::set_up_manual() {
  if (options_.gradients.hook || options_.fused_step.value_or(false))
    throw user_error(errc::bad_configuration,
                     "manual optimization sums whole gradients in manual_backward: leave out "
                     "strategy.comm_hook and strategy.fused_step");
  const auto& self = *this;
  if (!watch_ && typeid(self) == typeid(data_parallel)) watch_ = std::make_unique<gradient_watch>();
}

void data_parallel::refuse_unsummed(const torch::optim::Optimizer& optimizer) const {
  if (!watch_ || alone()) return;
  for (const auto& group : optimizer.param_groups())
    for (const auto& one : group.params()) {
      if (!one.defined() || !watch_->noted(one)) continue;
      std::string name = "of its own";
      for (const auto& item : bare_module()->named_parameters())
        if (item.value().is_same(one)) name = item.key();
      throw user_error(errc::job_failed,
                       fmt::format("an optimizer's step would train this rank alone: parameter {} "
                                   "has a gradient of loss.backward(), which is not summed over "
                                   "the {} ranks. Call manual_backward(loss) in its place, or "
                                   "assign the sum to the parameter's mutable_grad()",
                                   name, world()));
    }
}

// The module's parameters, then the parameters that only an optimizer has.
std::vector<at::Tensor> data_parallel::trained_parameters() const {
  std::vector<at::Tensor> all;
  std::unordered_set<c10::TensorImpl*> known;
  const auto add = [&](const at::Tensor& one) {
    if (one.defined() && known.insert(one.unsafeGetTensorImpl()).second) all.push_back(one);
  };
  for (const auto& one : bare_module()->parameters()) add(one);
  for (const auto& with : optimizers_in_use()->all())
    for (const auto& group : with.optimizer->param_groups())
      for (const auto& one : group.params()) add(one);
  return all;
}

// Gradients of earlier calls are summed already, so they are put aside. Those of a backward of the
// module's own are not, and stay noted.
void data_parallel::manual_backward(const at::Tensor& loss, double weight) {
  if (alone()) return strategy::manual_backward(loss, weight);
  const auto parameters = trained_parameters();
  std::vector<at::Tensor> earlier, unsummed;
  for (const auto& one : parameters) {
    if (watch_ && watch_->noted(one)) unsummed.push_back(one);
    earlier.push_back(std::exchange(one.mutable_grad(), at::Tensor{}));
  }
  {
    const gradient_watch::pause summed_later{watch_.get()};
    strategy::manual_backward(loss, weight);
  }
  sum_gradients(parameters);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& now = parameters[i].mutable_grad();
    if (earlier[i].defined()) now = now.defined() ? earlier[i].add_(now) : earlier[i];
  }
  for (const auto& one : unsummed) watch_->note(one);
}

// A parameter that some rank has used gets a gradient on all ranks. One sum per dtype.
void data_parallel::sum_gradients(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const auto before = clock();
  std::vector<std::byte> mine;
  for (const auto& one : parameters) {
    if (one.grad().defined() && one.grad().layout() != c10::kStrided)
      throw user_error(errc::job_failed,
                       "a parameter has a sparse gradient, which ranks cannot sum: build its layer "
                       "with sparse(false)");
    mine.push_back(std::byte{one.grad().defined()});
  }
  auto used = mine;
  for (const auto& other : gather_bytes(mine))
    for (std::size_t i = 0; i < used.size(); ++i) used[i] |= other[i];
  std::map<c10::ScalarType, std::vector<at::Tensor>> kinds;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (used[i] != std::byte{0}) kinds[parameters[i].scalar_type()].push_back(parameters[i]);
  for (const auto& [type, members] : kinds) {
    std::vector<at::Tensor> flat;
    for (const auto& one : members)
      flat.push_back(
          (one.grad().defined() ? one.grad() : at::zeros_like(one)).to(type).reshape({-1}));
    const auto total = sum(at::cat(flat), {});
    std::int64_t offset = 0;
    for (const auto& one : members) {
      auto summed = at::empty_like(one);
      summed.copy_(total.narrow(0, offset, one.numel()).view(one.sizes()));
      one.mutable_grad() = summed;
      offset += one.numel();
    }
  }
  waited_ += clock() - before;
}

// What is read must be sums of all ranks: one that a device failed to compute throws here.
std::vector<tensor_blob> data_parallel::module_state() {
  if (gradients_) gradients_->settle();
  return strategy::module_state();
}

std::chrono::nanoseconds data_parallel::clock() const {
  const auto& now = options_.gradients.now;
  return now ? now() : std::chrono::steady_clock::now().time_since_epoch();
}

std::chrono::nanoseconds data_parallel::waited() const {
  return gradients_ ? waited_ + gradients_->seen().waited : waited_;
}

// One staging buffer per dtype: a broadcast for all batch statistics of a kind.
void data_parallel::synchronize_buffers() {
  for (const auto& one : fused_)
    if (one && one->due)
      throw user_error(errc::job_failed,
                       "the module's optimizer_step stepped with gradients that were not summed: "
                       "call the base's, or set strategy.fused_step to false");
  if (alone() || !options_.broadcast_buffers) return;
  const at::NoGradGuard no_grad;
  std::map<c10::ScalarType, std::vector<at::Tensor>> kinds;
  for (const auto& buffer : buffers()) kinds[buffer.scalar_type()].push_back(buffer);
  std::vector<std::pair<at::Tensor, const std::vector<at::Tensor>*>> staged;
  std::vector<work_ptr> flying;
  for (const auto& [type, buffers] : kinds) {
    std::int64_t elements = 0;
    for (const auto& one : buffers) elements += one.numel();
    auto together = at::empty({elements}, at::TensorOptions{}.dtype(type));
    std::int64_t offset = 0;
    for (const auto& one : rank() == 0 ? to_host(buffers) : std::vector<at::Tensor>{}) {
      together.narrow(0, offset, one.numel()).copy_(one.reshape({-1}));
      offset += one.numel();
    }
    staged.emplace_back(together, &buffers);
  }
  const auto before = clock();
  for (auto& [together, buffers] : staged)
    flying.push_back(collectives().broadcast(buffer_of(together), 0));
  for (const auto& operation : flying) wait_for(collectives(), operation);
  waited_ += clock() - before;
  if (rank() == 0) return;
  for (const auto& [together, buffers] : staged) {
    std::int64_t offset = 0;
    for (const auto& one : *buffers) {
      one.detach().copy_(together.narrow(0, offset, one.numel()).view(one.sizes()));
      offset += one.numel();
    }
  }
}

std::vector<at::Tensor> data_parallel::buffers() const {
  std::vector<at::Tensor> found;
  for (const auto& buffer : bare_module()->buffers())
    if (buffer.defined()) found.push_back(buffer);
  return found;
}

reducer::figures data_parallel::gradient_figures() const {
  return gradients_ ? gradients_->seen() : reducer::figures{};
}

}  // namespace troupe
