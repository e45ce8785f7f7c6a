// The statistics of synchronised batch norm: moments of parts, merged in a fixed order, with
// gradients to every part. Copies of a module and ranks of a job use the same functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace troupe {

/// What a part knows of a batch. All are double and have one entry per channel.
/// - moments: (3, C), the rows are count, mean and sum of squared deviations from the mean
/// - statistics: mean and variance (biased)
struct batch_part {
  at::Tensor input;    ///< (N, C, ...); for its gradient
  at::Tensor moments;  ///< of `input`; in the result those of the whole batch
  at::Tensor mean;
  at::Tensor variance;
};

/// Every rank's tensor, stacked by rank: (ranks, ...). Empty: there is one rank.
using gather_ranks = std::function<at::Tensor(const at::Tensor& mine)>;

/// Two passes over the input, so that a mean that is large against the deviation costs no digits.
at::Tensor moments_of(const at::Tensor& input);

/// The statistics of the parts of all ranks, for each part of this rank on its device. Parts are
/// merged pairwise (Chan) along the canonical tree: first those of a rank, then the ranks. The mean
/// and variance of each part are differentiable in the input of every part; backward calls
/// `gather` once more. Throws user_error unless there are two values per channel.
std::vector<batch_part> join_statistics(std::vector<batch_part> parts, const gather_ranks& gather);

/// (input - mean) / deviation * weight + bias; differentiable in all tensors. `clamp`: the
/// deviation is sqrt(max(variance, eps)), else sqrt(variance + eps).
at::Tensor normalise(const batch_part& part, const at::Tensor& weight, const at::Tensor& bias,
                     double eps, bool clamp);

}  // namespace troupe
