#include "backends/torch/batch_moments.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <bit>
#include <span>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

at::ScalarType statistics_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// (C) as (1, C, 1, ...), to be used with `input`.
at::Tensor by_channel(const at::Tensor& row, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = row.numel();
  return row.to(statistics_type(input)).view(shape);
}

/// Combines neighbours along the canonical tree: split at the largest power of two below the count.
template <class F>
at::Tensor along_tree(std::span<const at::Tensor> parts, const F& combine) {
  if (parts.size() == 1) return parts[0];
  const auto left = std::bit_ceil(parts.size()) / 2;
  return combine(along_tree(parts.first(left), combine), along_tree(parts.subspan(left), combine));
}

at::Tensor merge_two(const at::Tensor& a, const at::Tensor& b) {
  const auto count = a[0] + b[0];
  const auto share = at::where(count > 0, b[0] / count, at::zeros_like(count));
  const auto apart = b[1] - a[1];
  return at::stack({count, a[1] + apart * share, a[2] + b[2] + apart * apart * a[0] * share});
}

/// The same tree over this rank's parts, then over the ranks.
template <class F>
at::Tensor over_all(const std::vector<at::Tensor>& mine, const gather_ranks& gather,
                    const F& combine) {
  std::vector<at::Tensor> here;
  for (const auto& one : mine) here.push_back(one.to(mine[0].device()));
  const auto local = along_tree(std::span<const at::Tensor>{here}, combine);
  if (!gather) return local;
  const auto ranks = gather(local).unbind(0);
  return along_tree(std::span<const at::Tensor>{ranks.data(), ranks.size()}, combine);
}

/// Mean and variance of the whole batch, one pair of outputs per part: so the gradients of the
/// parts arrive apart from each other, and are summed in order.
struct statistics_node : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> mine;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto row = [&](const at::Tensor& g) {
        return g.defined() ? g.to(mean.device()) : at::zeros_like(mean);
      };
      mine.push_back(at::stack({row(gradients[2 * i]), row(gradients[2 * i + 1])}));
    }
    const auto total = over_all(mine, gather, [](const auto& a, const auto& b) { return a + b; });
    const auto constant = total[0] / count, slope = total[1] * 2 / count;
    torch::autograd::variable_list results;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      results.emplace_back();
      if (!task_should_compute_output(i)) continue;
      const auto input = inputs[i].unpack();
      const auto type = statistics_type(input);
      const auto row = [&](const at::Tensor& t) { return by_channel(t.to(input.device()), input); };
      results.back() =
          (input.to(type) - row(mean)).mul_(row(slope)).add_(row(constant)).to(input.scalar_type());
    }
    return results;
  }
  void release_variables() override {
    for (auto& one : inputs) one.reset_data();
  }
  std::string name() const override { return "troupe::batch_statistics"; }

  std::vector<torch::autograd::SavedVariable> inputs;
  at::Tensor mean, count;
  gather_ranks gather;
};

struct normalising : torch::autograd::Function<normalising> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& mean, const at::Tensor& variance,
                            const at::Tensor& weight, const at::Tensor& bias, double eps,
                            bool clamp) {
    context->save_for_backward({input, mean, variance, weight});
    context->saved_data["eps"] = eps;
    context->saved_data["clamp"] = clamp;
    context->set_materialize_grads(false);
    if (input.numel() == 0) return at::empty_like(input);
    const auto type = statistics_type(input);
    return std::get<0>(at::native_batch_norm(input, weight.to(type), bias.to(type), mean.to(type),
                                             (clamp ? variance.clamp_min(eps) : variance).to(type),
                                             false, 0, clamp ? 0 : eps));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &mean = saved[1], &variance = saved[2], &weight = saved[3];
    const auto eps = context->saved_data["eps"].toDouble();
    const bool clamp = context->saved_data["clamp"].toBool();
    if (!gradients[0].defined()) return {{}, {}, {}, {}, {}, {}, {}};
    const auto type = statistics_type(input);
    const auto scale = weight.to(type);
    // d_weight is the sum of gradient * (input - mean) / deviation, d_bias that of the gradient.
    at::Tensor d_input, d_weight = at::zeros_like(scale), d_bias = at::zeros_like(scale);
    if (input.numel() == 0)
      d_input = at::zeros_like(input);
    else
      std::tie(d_input, d_weight, d_bias) =
          at::native_batch_norm_backward(gradients[0], input, scale, mean.to(type),
                                         (clamp ? variance.clamp_min(eps) : variance).to(type), {},
                                         {}, false, clamp ? 0 : eps, {true, true, true});
    const auto wide_scale = scale.to(at::kDouble);
    const auto inverse = (clamp ? variance.clamp_min(eps) : variance + eps).rsqrt();
    const auto d_mean = -d_bias.to(at::kDouble) * wide_scale * inverse;
    auto d_variance = d_weight.to(at::kDouble) * wide_scale * inverse * inverse * -0.5;
    if (clamp) d_variance = at::where(variance < eps, at::zeros_like(variance), d_variance);
    return {d_input,
            d_mean,
            d_variance,
            d_weight.to(weight.scalar_type()),
            d_bias.to(weight.scalar_type()),
            {},
            {}};
  }
};

}  // namespace

at::Tensor moments_of(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const auto channels = input.size(1);
  const auto count = input.numel() == 0 ? 0 : input.numel() / channels;
  const auto options = input.options().dtype(at::kDouble).requires_grad(false);
  if (count == 0) return at::zeros({3, channels}, options);
  const auto [mean, variance] =
      at::batch_norm_update_stats(input.detach().to(statistics_type(input)), {}, {}, 0);
  const auto counts = at::full({channels}, static_cast<double>(count), options);
  return at::stack({counts, mean.to(at::kDouble), variance.to(at::kDouble) * counts});
}

std::vector<batch_part> join_statistics(std::vector<batch_part> parts, const gather_ranks& gather) {
  at::Tensor merged, mean, variance;
  {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> moments;
    for (const auto& part : parts) moments.push_back(part.moments);
    merged = over_all(moments, gather, merge_two);
    if (merged.numel() > 0 && merged[0][0].item<double>() < 2)
      throw user_error(errc::job_failed,
                       "synchronised batch norm: training needs more than one value per channel in "
                       "all parts of the batch together; give it more samples, or call eval()");
    mean = merged[1];
    variance = merged[2] / merged[0];
  }
  torch::autograd::variable_list inputs;
  for (auto& part : parts) {
    inputs.push_back(part.input);
    part.moments = merged.to(part.input.device());
    part.mean = mean.to(part.input.device(), mean.scalar_type(), false, /*copy=*/true);
    part.variance = variance.to(part.input.device(), mean.scalar_type(), false, /*copy=*/true);
  }
  if (!torch::autograd::compute_requires_grad(inputs)) return parts;
  auto node = c10::make_intrusive<statistics_node>();
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  node->mean = mean;
  node->count = merged[0];
  node->gather = gather;
  for (auto& part : parts) {
    node->inputs.emplace_back(part.input, /*is_output=*/false);
    torch::autograd::set_history(part.mean, node);
    torch::autograd::set_history(part.variance, node);
  }
  return parts;
}

at::Tensor normalise(const batch_part& part, const at::Tensor& weight, const at::Tensor& bias,
                     double eps, bool clamp) {
  // An autograd function takes defined tensors only.
  const auto& row = part.moments[1];
  return normalising::apply(part.input, part.mean, part.variance,
                            weight.defined() ? weight : at::ones_like(row),
                            bias.defined() ? bias : at::zeros_like(row), eps, clamp);
}

}  // namespace troupe
