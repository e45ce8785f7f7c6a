#include "backends/torch/labels.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "troupe/failure.hpp"

namespace troupe::measures {

namespace {

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("({})", fmt::join(tensor.sizes(), ", "));
}

// (N, 1) and (N) are the same in any order of memory.
std::vector<std::int64_t> without_ones(at::IntArrayRef sizes) {
  auto rest = sizes.vec();
  std::erase(rest, 1);
  return rest;
}

[[noreturn]] void do_not_fit(const at::Tensor& prediction, const at::Tensor& target,
                             const classification& how) {
  const auto wanted = how.classes == 1
                          ? std::string{"a score or label per target"}
                          : fmt::format(
                                "scores (N, {}, ...) or integer labels (N, ...) for targets "
                                "(N, ...)",
                                how.classes);
  refuse(fmt::format("predictions {} and targets {} do not fit: give {}", shape_of(prediction),
                     shape_of(target), wanted));
}

void check_range(const at::Tensor& labels, std::int64_t classes, std::string_view what) {
  if (labels.numel() == 0) return;
  const auto least = labels.min().item<std::int64_t>(), most = labels.max().item<std::int64_t>();
  if (least >= 0 && most < classes) return;
  refuse(fmt::format("a {} is {}, but classes are 0 to {}: set classes, or ignore_index", what,
                     least < 0 ? least : most, classes - 1));
}

}  // namespace

void refuse(const std::string& what) { throw user_error(errc::job_failed, "a measure: " + what); }

const classification& checked(const classification& how) {
  if (how.classes < 1) refuse("classes must be 1 (binary) or more");
  if (how.top_k < 1 || how.top_k > how.classes) refuse("top_k must lie between 1 and classes");
  return how;
}

rows flat(const at::Tensor& prediction, const at::Tensor& target, const classification& how) {
  auto predicted = prediction.detach();
  const auto given = target.detach();
  if (given.is_floating_point() && given.ne(given.round()).any().item<bool>())
    refuse("a target is no whole number: targets are the numbers of classes");
  const bool scores = how.classes > 1 && prediction.dim() == target.dim() + 1;
  if (scores) {
    if (prediction.size(1) != how.classes) do_not_fit(prediction, target, how);
    predicted = predicted.movedim(1, -1);
  } else if (how.classes > 1 && predicted.is_floating_point()) {
    do_not_fit(prediction, target, how);
  }
  const auto rest = scores ? predicted.sizes().slice(0, predicted.dim() - 1) : predicted.sizes();
  if (without_ones(rest) != without_ones(target.sizes())) do_not_fit(prediction, target, how);
  predicted = scores ? predicted.reshape({-1, how.classes}) : predicted.reshape({-1});
  auto truth = given.to(at::kLong).reshape({-1});
  if (how.ignore_index) {
    const auto counted = truth.ne(*how.ignore_index).nonzero().squeeze(1);
    predicted = predicted.index_select(0, counted);
    truth = truth.index_select(0, counted);
  }
  check_range(truth, std::max<std::int64_t>(how.classes, 2), "target");
  return {predicted, truth};
}

at::Tensor probabilities(const at::Tensor& predicted, const classification& how) {
  if (!predicted.is_floating_point() || predicted.numel() == 0) return predicted;
  if (!predicted.lt(0).logical_or(predicted.gt(1)).any().item<bool>()) return predicted;
  return how.classes == 1 ? predicted.sigmoid() : predicted.softmax(1);
}

at::Tensor labels_of(const at::Tensor& predicted, const classification& how) {
  if (predicted.dim() == 2) return predicted.argmax(1);
  if (how.classes == 1 && predicted.is_floating_point())
    return predicted.gt(how.threshold).to(at::kLong);
  auto labels = predicted.to(at::kLong);
  check_range(labels, std::max<std::int64_t>(how.classes, 2), "prediction");
  return labels;
}

at::Tensor area_under(const at::Tensor& true_positives, const at::Tensor& false_positives,
                      const at::Tensor& positives, const at::Tensor& negatives) {
  const auto all = positives * negatives;
  const auto areas = at::trapezoid(true_positives, false_positives, -1);
  return at::where(all.gt(0), areas / all, at::zeros({}, at::kDouble));
}

at::Tensor exact_area(const at::Tensor& scores, const at::Tensor& truth) {
  if (scores.numel() == 0) return at::zeros({}, at::kDouble);
  const auto [sorted, order] = scores.sort(/*stable=*/true, -1, /*descending=*/true);
  const auto hits = truth.index_select(0, order).cumsum(0);
  const auto misses = at::arange(1, scores.numel() + 1, hits.options()) - hits;
  const auto last = at::full({1}, scores.numel() - 1, at::kLong);
  const auto ends = at::cat({sorted.diff().nonzero().squeeze(1), last});
  const auto from_zero = [&](const at::Tensor& x) {
    return at::cat({at::zeros({1}, at::kDouble), x.index_select(0, ends)});
  };
  return area_under(from_zero(hits), from_zero(misses), hits[-1], misses[-1]);
}

at::Tensor thresholds_reached(const at::Tensor& scores, std::int64_t thresholds) {
  const auto steps = at::linspace(0, 1, thresholds, at::kFloat).to(scores.options());
  return at::searchsorted(steps, scores.contiguous(), /*out_int32=*/false, /*right=*/true);
}

}  // namespace troupe::measures
