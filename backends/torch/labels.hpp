// The arithmetic of measures of labels: predictions and targets as rows, areas under curves.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "troupe/detail/classification.hpp"

namespace troupe::measures {

/// Throws user_error.
[[noreturn]] void refuse(const std::string& what);
/// Throws user_error for impossible options; else returns them.
const classification& checked(const classification& how);

struct rows {
  at::Tensor predicted;  ///< scores (n, classes), or scores or labels (n)
  at::Tensor truth;      ///< int64 (n)
};
/// Samples whose target is ignored are left out. Throws user_error if shapes do not fit or a target
/// is no class.
rows flat(const at::Tensor& prediction, const at::Tensor& target, const classification& how);
/// Scores between 0 and 1, of any shape: if a score lies outside, all of them are logits, and their
/// sigmoid is returned; of several classes (n, classes) their softmax. Labels stay, and NaN does.
at::Tensor probabilities(const at::Tensor& predicted, const classification& how);
/// Labels int64 (n) from scores, or labels as they are. Throws user_error for labels that are no
/// class.
at::Tensor labels_of(const at::Tensor& predicted, const classification& how);

/// The area under the curve of true over false positives; 0 where all samples are of one kind. The
/// last dimension goes from high scores to low ones.
at::Tensor area_under(const at::Tensor& true_positives, const at::Tensor& false_positives,
                      const at::Tensor& positives, const at::Tensor& negatives);
/// The same of samples with `scores` (n), float64, of which `truth` (n), float64, are 1. Equal
/// scores make one point.
at::Tensor exact_area(const at::Tensor& scores, const at::Tensor& truth);
/// How many of `thresholds` evenly spaced numbers from 0 to 1 each score reaches.
at::Tensor thresholds_reached(const at::Tensor& scores, std::int64_t thresholds);

}  // namespace troupe::measures
