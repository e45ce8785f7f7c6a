// PowerSGD: sums gradients as products of narrow matrices.
//
// T. Vogels, S. P. Karimireddy, M. Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for
// Distributed Optimization, NeurIPS 2019 (arXiv:1905.13727), algorithms 1 and 2, as PyTorch 2.13
// computes them (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py). For each gradient
// M_w of rank w, seen as a matrix of n rows, with the error E_w that is left from the last step:
//   P = orthogonal(sum over w of (M_w + E_w) Q)      Q = sum over w of (M_w + E_w)^T P
//   M = P Q^T                                        E_w = M_w + E_w - M / ranks
// Q begins as a random matrix, later as the last step's orthogonal(Q).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>

#include "troupe/detail/comm_hook.hpp"

namespace troupe {

/// What a rank keeps from step to step, by parameter: buckets may be laid out anew. Lives as long
/// as the hook; it is in no checkpoint, so a resumed run begins with `start_step` plain sums. Used
/// by one lane.
class powersgd_state {
public:
  explicit powersgd_state(powersgd_options how = {});
  powersgd_state(powersgd_state&&) noexcept;
  ~powersgd_state();

  /// Finished windows of gradients.
  std::int64_t steps() const { return steps_; }
  /// Elements of gradients since start_step, and what was sent of them.
  std::int64_t elements_before() const { return elements_before_; }
  std::int64_t elements_sent() const { return elements_sent_; }

private:
  friend struct powersgd_exchange;
  friend bucket_future powersgd_hook(powersgd_state& state, const gradient_bucket& bucket);

  struct memory {
    at::Tensor parameter;  // keeps the address that is its key
    at::Tensor q;          // undefined: to be drawn
    at::Tensor error;      // undefined: 0
  };
  std::uint32_t draw_seed();
  at::Tensor row(const gradient_bucket& bucket, std::int64_t elements);

  powersgd_options how_;
  std::mt19937 seeds_;
  std::unordered_map<const void*, memory> kept_;
  std::map<std::size_t, at::Tensor> rows_;  // by bucket: what is sent, in memory of a communicator
  std::int64_t steps_ = 0;
  std::int64_t elements_before_ = 0;
  std::int64_t elements_sent_ = 0;
};

/// A communication hook: `register_comm_hook(powersgd_state{options}, powersgd_hook)`. Equal to
/// Python's within rounding, for equal buckets, but:
/// - it sums and does not average, because gradients are weighted
/// - the plain gradients of a bucket travel with its P: two operations, not three
/// - a column without length becomes 0, where Python divides by 0
/// - a Q that became 0 is drawn again, where Python never sends that gradient again
/// - a gradient that is infinite or no number is NaN on all ranks, and leaves the error and the
///   later steps alone
bucket_future powersgd_hook(powersgd_state& state, const gradient_bucket& bucket);

}  // namespace troupe
