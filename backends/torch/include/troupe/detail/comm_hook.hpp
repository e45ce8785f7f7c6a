// Communication hooks, as users of DDP know them: what sums a bucket of gradients over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troupe/communicator.hpp"
#include "troupe/options.hpp"

namespace troupe {

/// A bucket on its way. Gradients are weighted by this rank's share of the step's samples already,
/// so the step's gradient is their plain sum: a hook divides by nothing.
class gradient_bucket {
public:
  /// Where one parameter's gradient lies.
  struct part {
    at::Tensor parameter;
    std::int64_t offset = 0;  ///< elements
    std::vector<std::int64_t> strides;
  };
  /// Memory that stays with a bucket from step to step, by dtype.
  using memory = std::map<c10::ScalarType, at::Tensor>;

  gradient_bucket(communicator& world, std::size_t index, bool last, at::Tensor buffer,
                  const std::vector<part>& parts, memory& kept)
      : world_(&world),
        index_(index),
        last_(last),
        buffer_(std::move(buffer)),
        parts_(&parts),
        kept_(&kept) {}

  communicator& world() const { return *world_; }
  std::size_t index() const { return index_; }  ///< in the order in which buckets leave
  bool is_last() const { return last_; }
  /// All gradients in one row, in memory of the communicator. What lies between them is 0.
  const at::Tensor& buffer() const { return buffer_; }
  /// Views of the buffer, shaped as their parameters.
  std::vector<at::Tensor> gradients() const;
  std::vector<at::Tensor> parameters() const;
  /// As many elements as the buffer of another type, in memory of the communicator; the same at
  /// each step. Contents undefined.
  at::Tensor scratch(c10::ScalarType type) const;
  /// The same bucket with its gradients elsewhere: for hooks that wrap others.
  gradient_bucket with(at::Tensor buffer) const;

private:
  communicator* world_;
  std::size_t index_;
  bool last_;
  at::Tensor buffer_;
  const std::vector<part>* parts_;
  memory* kept_;
};

/// What a hook returns: how to get the bucket's sum when it is complete.
struct bucket_future {
  /// Null: there is nothing to wait for.
  work_ptr pending;
  /// Called once `pending` is done, in the rank's lane, bucket by bucket in the order in which they
  /// left: the sum, with as many elements as the bucket. May wait for further collectives of its
  /// own. Null: the bucket's buffer holds it.
  std::function<at::Tensor()> sum;
};

/// Called in the rank's lane, inside of autograd, as soon as the bucket is complete: it must not
/// wait. All ranks use the same hook, for the same buckets in the same order. What it throws is
/// thrown after backward. The bucket is the hook's until it returns; tensors may be kept longer.
using comm_hook = std::function<bucket_future(const gradient_bucket& bucket)>;

/// A plain all_reduce, what is done without a hook.
bucket_future allreduce_hook(const gradient_bucket& bucket);
/// Nothing travels: every rank goes on with its own gradients.
bucket_future noop_hook(const gradient_bucket& bucket);
/// Runs `inner` on gradients rounded to half or bfloat16, and widens what comes back. Sums that
/// leave half's range become infinite.
comm_hook f16_compress_wrapper(comm_hook inner);
comm_hook bf16_compress_wrapper(comm_hook inner);

/// The hook of gradient_options::comm_hook, with a new state; null for `allreduce`, which needs
/// none.
comm_hook comm_hook_of(const gradient_options& from);

}  // namespace troupe
