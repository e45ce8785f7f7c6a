#include "troupe/sync_batch_norm.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/batch_moments.hpp"
#include "backends/torch/collective_wait.hpp"
#include "backends/torch/replication.hpp"
#include "backends/torch/sync_batch_norm_parts.hpp"
#include "backends/torch/sync_layers.hpp"
#include "troupe/detail/tensor.hpp"

namespace troupe {

namespace {

[[noreturn]] void refuse_input(const std::string& text) {
  throw user_error(errc::job_failed, text);
}

/// As LibTorch's batch norms check it; with `dims` 0 any input with channels.
void check_shape(const at::Tensor& input, const sync_batch_norm_options& how) {
  const auto extra = input.dim() - 2;
  const bool fits = how.dims == 0   ? extra >= 0
                    : how.dims == 1 ? extra == 0 || extra == 1
                                    : extra == how.dims;
  if (!fits)
    refuse_input(
        fmt::format("synchronised batch norm {}d got an input of {} dimensions: give it {}",
                    how.dims, input.dim(),
                    how.dims == 0   ? "(N, C, ...)"
                    : how.dims == 1 ? "(N, C) or (N, C, L)"
                    : how.dims == 2 ? "(N, C, H, W)"
                                    : "(N, C, D, H, W)"));
  if (input.size(1) != how.norm.num_features())
    refuse_input(fmt::format("synchronised batch norm of {} features got an input with {} channels",
                             how.norm.num_features(), input.size(1)));
}

}  // namespace

sync_batch_norm_impl::sync_batch_norm_impl(sync_batch_norm_options how) : options(std::move(how)) {
  if (options.dims < 0 || options.dims > 3)
    throw user_error(errc::bad_configuration, "sync_batch_norm_options::dims is 0, 1, 2 or 3");
  sync_batch_norm_impl::reset();
}

sync_batch_norm_impl::sync_batch_norm_impl(sync_batch_norm_options how, const tensors& state)
    : options(std::move(how)) {
  take(state);
}

void sync_batch_norm_impl::take(const tensors& state) {
  const auto parameter = [&](const char* name, const at::Tensor& tensor) {
    return register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  weight = parameter("weight", state.weight);
  bias = parameter("bias", state.bias);
  running_mean = register_buffer("running_mean", state.running_mean);
  running_var = register_buffer("running_var", state.running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", state.num_batches_tracked);
}

void sync_batch_norm_impl::reset() {
  const auto features = options.norm.num_features();
  const auto row = [&](bool wanted, double with) {
    return wanted ? at::empty({features}).fill_(with) : at::Tensor{};
  };
  const auto learned = [&](double with) {
    const auto made = row(options.norm.affine(), with);
    return made.defined() ? made.requires_grad_() : made;
  };
  const bool tracked = options.norm.track_running_stats();
  take({learned(1), learned(0), row(tracked, 0), row(tracked, 1),
        tracked ? at::empty({}, at::kLong).zero_() : at::Tensor{}});
}

void sync_batch_norm_impl::pretty_print(std::ostream& stream) const {
  stream << fmt::format(
      "troupe::sync_batch_norm({}, eps={}, momentum={}, affine={}, "
      "track_running_stats={})",
      options.norm.num_features(), options.norm.eps(),
      options.norm.momentum() ? fmt::to_string(*options.norm.momentum()) : "none",
      options.norm.affine(), options.norm.track_running_stats());
}

void sync_batch_norm_impl::on_replicate(const std::shared_ptr<replication_context>& context,
                                        std::int64_t copy_id) {
  context_ = context;
  copy_ = copy_id;
}

at::Tensor sync_batch_norm_impl::forward(const at::Tensor& input) {
  check_shape(input, options);
  const bool tracked = running_mean.defined();
  double factor = options.norm.momentum().value_or(0);
  if (is_training() && tracked) {
    const at::NoGradGuard no_grad;
    num_batches_tracked.add_(1);
    if (!options.norm.momentum()) factor = 1.0 / num_batches_tracked.item<double>();
  }
  const bool copies = context_ && context_->copies() > 1;
  if (is_training() && (copies || ranks_)) return synchronised(input, factor);
  const bool of_batch = is_training() || !tracked;
  if (of_batch && input.numel() == input.size(1))
    refuse_input("batch norm: training needs more than one value per channel");
  return at::batch_norm(input, weight, bias, running_mean, running_var, of_batch, factor,
                        options.norm.eps(), at::globalContext().userEnabledCuDNN());
}

at::Tensor sync_batch_norm_impl::synchronised(const at::Tensor& input, double factor) {
  const auto join = [&](std::vector<batch_part> parts) {
    gather_ranks gather;
    if (ranks_) gather = [ranks = ranks_](const at::Tensor& mine) { return ranks->gather(mine); };
    return join_statistics(std::move(parts), gather);
  };
  batch_part part;
  part.input = input;
  part.moments = moments_of(input);
  if (context_ && context_->copies() > 1)
    part = context_->exchange<batch_part>(copy_, std::move(part), join);
  else
    part = join({std::move(part)})[0];
  if (copy_ == 0 && running_mean.defined()) update(part.moments, factor);
  return normalise(part, weight, bias, options.norm.eps(),
                   options.eps_mode == batch_norm_eps::clamp);
}

// The unbiased variance, as in PyTorch.
void sync_batch_norm_impl::update(const at::Tensor& merged, double factor) {
  const at::NoGradGuard no_grad;
  const auto move = [&](at::Tensor& running, const at::Tensor& to) {
    running.mul_(1 - factor).add_(to.to(running.scalar_type()), factor);
  };
  move(running_mean, merged[1]);
  move(running_var, merged[2] / (merged[0] - 1));
}

at::Tensor sync_batch_norm_impl::rank_group::gather(const at::Tensor& mine) const {
  const at::NoGradGuard no_grad;
  auto sent = to_host(mine.detach()).contiguous();
  auto shape = mine.sizes().vec();
  shape.insert(shape.begin(), static_cast<std::int64_t>(members.ranks.size()));
  auto all = at::empty(shape, sent.options());
  wait_for(*world, world->all_gather(buffer_of(sent), buffer_of(all), members));
  return all.to(mine.device());
}

}  // namespace troupe
