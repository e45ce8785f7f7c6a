#include "troupe/measures.hpp"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <map>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/labels.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"
#include "troupe/module.hpp"
#include "troupe/strategy.hpp"

namespace troupe::measures {

namespace {

at::Tensor summed_over_ranks(const at::Tensor& mine, strategy* how) {
  return how ? unboxed(how->reduce(boxed(mine), "sum")) : mine;
}

at::Tensor quotient(const at::Tensor& above, const at::Tensor& below) {
  return at::where(below.eq(0), at::zeros({}, at::kDouble), above / below);
}

}  // namespace

// --- the base ------------------------------------------------------------------------------------

measure::measure(std::string name, at::IntArrayRef shape, at::ScalarType type)
    : torch::nn::Module(std::move(name)) {
  joined_ = register_buffer("joined", at::zeros(shape, type));
  here_ = register_buffer("here", at::zeros(shape, type));
}

void measure::add(const at::Tensor& more) {
  const at::NoGradGuard no_grad;
  here_.add_(more.to(here_.options()));
}

at::Tensor measure::compute(module& of) const { return compute_with(of.strategy_in_use()); }

at::Tensor measure::compute_with(strategy* how) const {
  const at::NoGradGuard no_grad;
  return to_host(result(joined_ + summed_over_ranks(here_, how)));
}

void measure::reset() {
  const at::NoGradGuard no_grad;
  joined_.zero_();
  here_.zero_();
}

void measure::to(torch::Device device, torch::Dtype, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}
void measure::to(torch::Dtype, bool) {}

joint_update::joint_update(const torch::nn::Module& below) {
  for (const auto& one : below.modules(/*include_self=*/false))
    if (auto known = std::dynamic_pointer_cast<measure>(one)) found_.push_back(std::move(known));
}

void joint_update::operator()(strategy& how) const {
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<measure*>> by_type;
  for (const auto& one : found_) by_type[one->here_.scalar_type()].push_back(one.get());
  for (const auto& [type, some] : by_type) {
    std::vector<at::Tensor> mine;
    for (const auto* one : some) mine.push_back(one->here_.flatten());
    const auto all = summed_over_ranks(at::cat(mine), &how);
    std::int64_t offset = 0;
    for (auto* one : some) {
      one->joined_.add_(all.narrow(0, offset, one->here_.numel()).view_as(one->here_));
      offset += one->here_.numel();
      one->here_.zero_();
    }
  }
}

// --- labels --------------------------------------------------------------------------------------

label_counts::label_counts(kind what, classification how)
    : measure("label_counts", {4, checked(how).classes}, at::kLong), what_(what), how_(how) {
  if (how_.top_k > 1 && what_ != kind::accuracy)
    refuse("top_k is for accuracy only: leave it at 1");
}

// The rows: true positives, false positives, false negatives, and of a binary measure true
// negatives.
void label_counts::update(const at::Tensor& prediction, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  const bool binary = how_.classes == 1;
  // Ignored samples may show that they are logits, as in torchmetrics.
  const auto [predicted, truth] =
      flat(binary ? probabilities(prediction, how_) : prediction, target, how_);
  if (binary) {
    const auto yes = labels_of(predicted, how_).eq(1), is = truth.eq(1);
    add(at::stack({yes & is, yes & ~is, ~yes & is, ~yes & ~is}).sum(1, /*keepdim=*/true));
    return;
  }
  const auto count = [this](const at::Tensor& x) { return at::bincount(x, {}, how_.classes); };
  const auto actual = count(truth);
  if (how_.top_k == 1) {
    const auto label = labels_of(predicted, how_);
    const auto right = count(truth.masked_select(label.eq(truth)));
    add(at::stack({right, count(label) - right, actual - right, at::zeros_like(right)}));
    return;
  }
  if (predicted.dim() != 2) refuse("top_k needs scores (N, classes, ...), not labels");
  const auto best = std::get<1>(predicted.topk(how_.top_k, 1));
  const auto right = count(truth.masked_select(best.eq(truth.unsqueeze(1)).any(1)));
  const auto none = at::zeros_like(right);
  add(at::stack({right, none, actual - right, none}));
}

at::Tensor label_counts::result(const at::Tensor& sums) const {
  const auto counts = sums.to(at::kDouble);
  const auto hit = counts[0], wrong = counts[1], missed = counts[2];
  const bool binary = how_.classes == 1;
  auto above = hit, below = hit;
  switch (what_) {
    case kind::accuracy:
      above = binary ? hit + counts[3] : hit;
      below = binary ? counts.sum(0) : hit + missed;
      break;
    case kind::precision: below = hit + wrong; break;
    case kind::recall: below = hit + missed; break;
    case kind::f1:
      above = 2 * hit;
      below = 2 * hit + wrong + missed;
      break;
  }
  if (binary) return quotient(above, below).squeeze(0);
  if (how_.how == average::micro) return quotient(above.sum(), below.sum());
  const auto each = quotient(above, below);
  if (how_.how == average::none) return each;
  const auto weights =
      how_.how == average::weighted ? hit + missed : (hit + wrong + missed).ne(0).to(at::kDouble);
  return quotient((weights * each).sum(), weights.sum());
}

confusion_matrix::confusion_matrix(classification how, normalize by)
    : measure(
          "confusion_matrix",
          {std::max<std::int64_t>(checked(how).classes, 2), std::max<std::int64_t>(how.classes, 2)},
          at::kLong),
      how_(how),
      by_(by) {}

void confusion_matrix::update(const at::Tensor& prediction, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  auto [predicted, truth] = flat(prediction, target, how_);
  if (how_.classes == 1) predicted = probabilities(predicted, how_);
  const auto classes = std::max<std::int64_t>(how_.classes, 2);
  const auto cells = truth * classes + labels_of(predicted, how_);
  add(at::bincount(cells, {}, classes * classes).view({classes, classes}));
}

at::Tensor confusion_matrix::result(const at::Tensor& sums) const {
  const auto counts = sums.to(at::kDouble);
  switch (by_) {
    case normalize::none: return counts;
    case normalize::targets: return quotient(counts, counts.sum(1, /*keepdim=*/true));
    case normalize::predictions: return quotient(counts, counts.sum(0, /*keepdim=*/true));
    case normalize::all: return quotient(counts, counts.sum());
  }
  throw internal_error("confusion_matrix: unknown normalization");
}

// --- means ---------------------------------------------------------------------------------------

namespace {

at::Tensor differences(const at::Tensor& prediction, const at::Tensor& target) {
  if (prediction.sizes() != target.sizes())
    refuse(fmt::format("predictions ({}) and targets ({}) differ in shape: give equal ones",
                       fmt::join(prediction.sizes(), ", "), fmt::join(target.sizes(), ", ")));
  return prediction.to(at::kDouble) - target.to(at::kDouble);
}

at::Tensor sum_and_count(const at::Tensor& numbers) {
  return at::stack({numbers.sum(), at::full({}, numbers.numel(), numbers.options())});
}

}  // namespace

mean_squared_error::mean_squared_error(bool root)
    : measure("mean_squared_error", {2}, at::kDouble), root_(root) {}

void mean_squared_error::update(const at::Tensor& prediction, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  add(sum_and_count(differences(prediction, target).square()));
}

at::Tensor mean_squared_error::result(const at::Tensor& sums) const {
  const auto mean = quotient(sums[0], sums[1]);
  return root_ ? mean.sqrt() : mean;
}

mean_absolute_error::mean_absolute_error() : measure("mean_absolute_error", {2}, at::kDouble) {}

void mean_absolute_error::update(const at::Tensor& prediction, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  add(sum_and_count(differences(prediction, target).abs()));
}

at::Tensor mean_absolute_error::result(const at::Tensor& sums) const {
  return quotient(sums[0], sums[1]);
}

perplexity::perplexity(std::optional<std::int64_t> ignore_index)
    : measure("perplexity", {2}, at::kDouble), ignore_index_(ignore_index) {}

void perplexity::update(const at::Tensor& prediction, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  if (prediction.dim() != target.dim() + 1 ||
      prediction.sizes().slice(0, target.dim()) != target.sizes())
    refuse(fmt::format("logits ({}) and targets ({}) do not fit: give (..., V) and (...)",
                       fmt::join(prediction.sizes(), ", "), fmt::join(target.sizes(), ", ")));
  const auto words = prediction.size(-1);
  // `flat` checks the targets and leaves out ignored ones, as it does for labels.
  const auto [logits, truth] =
      flat(prediction.reshape({-1, words}), target.reshape({-1}),
           {.classes = std::max<std::int64_t>(words, 2), .ignore_index = ignore_index_});
  const auto likely = logits.to(at::kDouble).log_softmax(1).gather(1, truth.unsqueeze(1));
  add(sum_and_count(-likely));
}

at::Tensor perplexity::result(const at::Tensor& sums) const {
  return quotient(sums[0], sums[1]).exp();
}

// --- areas ---------------------------------------------------------------------------------------

namespace {

/// The rows of all ranks, in the order of ranks. Ranks may have different numbers of rows.
at::Tensor gathered(const at::Tensor& mine, strategy& how) {
  const auto columns = mine.size(1);
  const std::int64_t count = mine.size(0);
  std::int64_t longest = 0;
  std::vector<std::int64_t> counts;
  for (const auto& bytes : how.gather_bytes(std::as_bytes(std::span{&count, 1}))) {
    std::memcpy(&counts.emplace_back(), bytes.data(), sizeof count);
    longest = std::max(longest, counts.back());
  }
  if (longest == 0) return mine;
  auto padded = at::zeros({longest, columns}, at::kDouble);
  padded.narrow(0, 0, count).copy_(mine);
  const std::span numbers{padded.const_data_ptr<double>(),
                          static_cast<std::size_t>(padded.numel())};
  std::vector<at::Tensor> all;
  std::size_t rank = 0;
  for (const auto& bytes : how.gather_bytes(std::as_bytes(numbers))) {
    auto theirs = at::empty({counts[rank++], columns}, at::kDouble);
    if (theirs.numel() == 0) continue;
    std::memcpy(theirs.mutable_data_ptr<double>(), bytes.data(), theirs.nbytes());
    all.push_back(std::move(theirs));
  }
  return at::cat(all);
}

}  // namespace

// With thresholds the sums are (2, classes, thresholds + 1): of samples that are not and that are
// of a class, how many scores reach 0, 1, ... thresholds.
auroc::auroc(classification how, std::int64_t thresholds)
    : measure("auroc", {2, checked(how).classes, thresholds > 0 ? thresholds + 1 : 0}, at::kLong),
      how_(how),
      thresholds_(thresholds) {
  if (thresholds < 0 || thresholds == 1) refuse("thresholds must be 0 (exact), or 2 or more");
  if (how_.top_k > 1 || (how_.classes > 1 && how_.how == average::micro))
    refuse("an auroc has no top_k and no average::micro: use macro, weighted or none");
}

void auroc::update(const at::Tensor& prediction, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  auto [scores, truth] = flat(prediction, target, how_);
  if (!scores.is_floating_point()) refuse("an auroc needs scores, not labels");
  if (how_.classes == 1) scores = scores.unsqueeze(1);
  if (scores.dim() != 2) refuse("an auroc needs a score per class (N, classes, ...)");
  if (scores.numel() == 0) return;
  if (scores.isnan().any().item<bool>()) refuse("a score is not a number");
  scores = probabilities(scores, how_);
  if (thresholds_ == 0) {
    const auto kept = [](const at::Tensor& x) { return to_host(x).to(at::kDouble); };
    rows_.push_back(at::cat({kept(scores), kept(truth).unsqueeze(1)}, 1));
    return;
  }
  const auto reached = thresholds_reached(scores, thresholds_);
  const auto one_hot = how_.classes == 1 ? truth.unsqueeze(1) : at::one_hot(truth, how_.classes);
  const auto classes = at::arange(how_.classes, reached.options());
  const auto width = thresholds_ + 1;
  const auto cells = (one_hot * how_.classes + classes) * width + reached;
  add(at::bincount(cells.flatten(), {}, 2 * how_.classes * width).view({2, how_.classes, width}));
}

void auroc::reset() {
  measure::reset();
  rows_.clear();
}

at::Tensor auroc::compute_with(strategy* how) const {
  if (thresholds_ > 0) return measure::compute_with(how);
  const at::NoGradGuard no_grad;
  const auto mine = rows_.empty() ? at::empty({0, how_.classes + 1}, at::kDouble) : at::cat(rows_);
  const auto all = how ? gathered(mine, *how) : mine;
  const auto truth = all.select(1, how_.classes);
  std::vector<at::Tensor> areas, positives;
  for (std::int64_t c = 0; c < how_.classes; ++c) {
    const auto is = truth.eq(how_.classes == 1 ? 1 : c).to(at::kDouble);
    areas.push_back(exact_area(all.select(1, c), is));
    positives.push_back(is.sum());
  }
  return averaged(at::stack(areas), at::stack(positives));
}

at::Tensor auroc::result(const at::Tensor& sums) const {
  const auto counts = sums.to(at::kDouble);
  const auto totals = counts.sum(-1);
  // How many scores reach at least threshold i, from the highest threshold to the lowest.
  const auto reaching = counts.flip(-1).cumsum(-1).narrow(-1, 0, thresholds_);
  return averaged(area_under(reaching[1], reaching[0], totals[1], totals[0]), totals[1]);
}

at::Tensor auroc::averaged(const at::Tensor& areas, const at::Tensor& positives) const {
  if (how_.classes == 1) return areas.squeeze(0);
  if (how_.how == average::none) return areas;
  if (how_.how == average::macro) return areas.mean();
  const auto all = positives.sum();
  return at::where(all.gt(0), (areas * positives).sum() / all, at::zeros({}, at::kDouble));
}

}  // namespace troupe::measures
