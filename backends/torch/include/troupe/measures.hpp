// Measures: numbers over all samples of all ranks that are no mean of numbers of batches. Equal to
// what torchmetrics computes from all samples together, however ranks and batches divide them: of
// logits this is true if each update shows that it has logits.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/detail/classification.hpp"

namespace troupe {
struct module;
class strategy;
}  // namespace troupe

namespace troupe::measures {

/// Adds up what it needs, and computes from the sums of all ranks.
/// - `update` is for steps: it calls no collective, and ranks without samples do not call it.
/// - `compute` is for hooks, where every rank calls it and gets the same number. It adds the sums
///   of all ranks and changes none, so a second call gives the same.
/// - An evaluation that a failure interrupts is repeated from its start. So a measure that is reset
///   in the start hook of the evaluation needs no state that survives.
/// - A measure that is updated in training steps is registered with the module (register_module).
///   Each step then joins the sums of the ranks, with two collectives for all sums of a type. The
///   sums are buffers, which are saved, rewound and sent to a rank that joins. They add to the
///   module's keys.
/// - Sums are int64, or float64 where they are not counts, in every precision of the module.
/// Not thread-safe.
class measure : public torch::nn::Module {
public:
  /// Throws user_error that says which shapes or values do not fit.
  virtual void update(const at::Tensor& prediction, const at::Tensor& target) = 0;
  /// A float64 tensor: of no dimensions unless the measure says otherwise. Collective.
  at::Tensor compute(module& of) const;
  /// The same, in a strategy. Collective.
  at::Tensor compute(strategy& how) const { return compute_with(&how); }
  /// From this rank alone.
  at::Tensor compute() const { return compute_with(nullptr); }
  /// Forgets all samples, of this rank and those that were joined.
  virtual void reset();

  /// Moves the sums; their types stay.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  /// Does nothing: the sums keep their types.
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  using torch::nn::Module::to;

protected:
  measure(std::string name, at::IntArrayRef shape, at::ScalarType type);
  void add(const at::Tensor& more);
  virtual at::Tensor compute_with(strategy* how) const;
  /// From the sums of all samples.
  virtual at::Tensor result(const at::Tensor& sums) const = 0;

private:
  friend class joint_update;

  at::Tensor joined_;  // of all ranks, the same on each
  at::Tensor here_;    // of this rank since then
};

/// The measures below that count right and wrong labels. A quotient without samples is 0.
/// Binary scores of an update with a score outside of 0 to 1 are logits: their sigmoid is compared
/// with the threshold. Give the sigmoid if all logits of a batch may lie between 0 and 1.
class label_counts : public measure {
public:
  void update(const at::Tensor& prediction, const at::Tensor& target) override;

protected:
  enum class kind : std::uint8_t { accuracy, precision, recall, f1 };
  label_counts(kind what, classification how);
  at::Tensor result(const at::Tensor& sums) const override;

private:
  kind what_;
  classification how_;
};

/// Right predictions over all: of a class, over the samples of that class. `micro` is the share of
/// all samples.
struct accuracy final : label_counts {
  /// Throws user_error for impossible options.
  explicit accuracy(classification how = {}) : label_counts(kind::accuracy, how) {}
};
/// The share of true positives in the samples that are predicted to be of a class.
struct precision final : label_counts {
  /// Throws user_error for impossible options.
  explicit precision(classification how = {}) : label_counts(kind::precision, how) {}
};
/// The share of true positives in the samples that are of a class.
struct recall final : label_counts {
  /// Throws user_error for impossible options.
  explicit recall(classification how = {}) : label_counts(kind::recall, how) {}
};
/// The harmonic mean of precision and recall.
struct f1 final : label_counts {
  /// Throws user_error for impossible options.
  explicit f1(classification how = {}) : label_counts(kind::f1, how) {}
};

/// What the entries of a confusion matrix are divided by.
enum class normalize : std::uint8_t { none, targets, predictions, all };

/// (classes, classes), binary (2, 2): entry (i, j) counts samples of class i that are predicted as
/// j. `classification::how` and `top_k` do not apply. Binary logits are found as above.
class confusion_matrix final : public measure {
public:
  /// Throws user_error for impossible options.
  explicit confusion_matrix(classification how = {}, normalize by = normalize::none);
  void update(const at::Tensor& prediction, const at::Tensor& target) override;

private:
  at::Tensor result(const at::Tensor& sums) const override;

  classification how_;
  normalize by_;
};

/// The area under the curve of true over false positives; of several classes, of each against the
/// rest (macro, weighted or none). Predictions are scores between 0 and 1. If a score of an update
/// lies outside, all of the update are logits: their sigmoid counts, or the softmax over classes.
/// A class without positive or without negative samples has 0.
/// - `thresholds` 0: exact. Keeps 8 (classes + 1) bytes per sample. compute takes about three times
///   that for the samples of all ranks, on each rank. Not a buffer: for evaluation only.
/// - `thresholds` n > 1: scores are counted at n thresholds, evenly spaced from 0 to 1. Keeps
///   32 classes (n + 1) bytes in all.
class auroc final : public measure {
public:
  /// Throws user_error for impossible options, a negative number of thresholds and 1.
  explicit auroc(classification how = {}, std::int64_t thresholds = 0);
  void update(const at::Tensor& prediction, const at::Tensor& target) override;
  void reset() override;

private:
  at::Tensor compute_with(strategy* how) const override;
  at::Tensor result(const at::Tensor& sums) const override;
  at::Tensor averaged(const at::Tensor& areas, const at::Tensor& positives) const;

  classification how_;
  std::int64_t thresholds_;
  std::vector<at::Tensor> rows_;  // (n, classes + 1) each: scores, then the target
};

/// The mean of squared differences, or its root. Predictions and targets of the same shape.
class mean_squared_error final : public measure {
public:
  /// `root`: the root of the mean.
  explicit mean_squared_error(bool root = false);
  void update(const at::Tensor& prediction, const at::Tensor& target) override;

private:
  at::Tensor result(const at::Tensor& sums) const override;

  bool root_;
};

/// The mean of absolute differences.
class mean_absolute_error final : public measure {
public:
  /// Predictions and targets of the same shape.
  mean_absolute_error();
  void update(const at::Tensor& prediction, const at::Tensor& target) override;

private:
  at::Tensor result(const at::Tensor& sums) const override;
};

/// exp of the mean cross entropy. Predictions are logits (..., V), targets labels (...).
class perplexity final : public measure {
public:
  /// `ignore_index`: a target that does not count.
  explicit perplexity(std::optional<std::int64_t> ignore_index = {});
  void update(const at::Tensor& prediction, const at::Tensor& target) override;

private:
  at::Tensor result(const at::Tensor& sums) const override;

  std::optional<std::int64_t> ignore_index_;
};

/// Joins the sums of all measures that are registered below a module. The runtime calls it in each
/// optimizer step, before buffers are exchanged.
class joint_update {
public:
  /// `below` itself is not looked at. Measures that are registered later are not found.
  explicit joint_update(const torch::nn::Module& below);
  /// Collective if there is a measure.
  void operator()(strategy& how) const;

private:
  std::vector<std::shared_ptr<measure>> found_;
};

}  // namespace troupe::measures
