// Gradients of data-parallel ranks: they live in buckets of the communicator's memory and are
// summed over ranks while backward still runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/communicator.hpp"
#include "troupe/detail/bucket_plan.hpp"
#include "troupe/detail/comm_hook.hpp"

namespace troupe {

class accelerator;

struct reducer_options {
  /// The first bucket is small, so that the first sum starts early. Not used once caps are tuned.
  std::size_t first_bucket_bytes = bucket_caps{}.first;
  /// Unset: 4 MiB, and from the second layout on what the communicator measured on its own memory.
  std::optional<std::size_t> bucket_bytes;
  /// False: buckets are sent after backward has ended. For modules that run several backwards in
  /// one.
  bool overlap = true;
  /// See gradient_options.
  bool find_unused_parameters = false;
  bool static_graph = false;
  /// Sums a bucket. Null: a plain all_reduce, which carries the step status as well.
  comm_hook hook;
  /// Where ranks share memory, summing a gradient of at least this size in place is cheaper than
  /// copying it into a bucket.
  std::size_t stays_from_bytes = std::size_t{512} << 10;
  /// Bit i: optimizer i sums gradients itself (fused_step). After `finish` of its windows each
  /// `.grad` that at least one rank has holds this rank's part of it: zeros if this rank has none.
  std::uint64_t summed_elsewhere = 0;
  /// Of the parameters' device, where the communicator carries its memory. `finish` then returns
  /// before the device has computed the sums: they are there for what is submitted to the current
  /// stream afterwards. Null: `finish` waits for them.
  std::shared_ptr<const accelerator> devices;
  /// A monotonic clock. Null: std::chrono::steady_clock.
  std::function<std::chrono::nanoseconds()> now;
};

/// Life of a window (the micro-batches of one step): `zero`, then for each micro-batch a backward,
/// the last of them between `begin` and `finish`.
///
/// `.grad` of a parameter is undefined from `zero` until its gradient arrives; then it is a tensor
/// in bucket memory, into which later micro-batches accumulate. If the user replaces `.grad`, the
/// reducer copies the new gradient into its place and puts that back (counted in `replaced`). A
/// `.grad` that the user removed counts as zero. After `finish`, `.grad` holds the sum over ranks.
/// It is undefined if no rank had a gradient, so that optimizers skip that parameter, as they do
/// without Troupe.
///
/// Where ranks share memory, large gradients, and all gradients that a fused step sums, stay in the
/// tensor that autograd allocated, and nothing is copied. Exceptions: another tensor shares that
/// memory, or the gradient's strides differ from its parameter's; such a gradient is copied.
///
/// Gradients that are in no memory, because their device collects operators first, stay autograd's
/// tensors as well. Their buckets are sent after backward, and `finish` replaces them by the sums.
///
/// All ranks send their buckets in the same order, so ranks whose backward reaches parameters in
/// another order, or not at all, agree. At first that is the reverse order of the parameters. After
/// the first step it is the order in which rank 0's gradients arrived; ranks then also time a few
/// all_reduces and agree on rank 0's sizes of buckets. Neither changes a bit of any sum. Parameters
/// that do not require a gradient when a window begins take no part in it; all ranks freeze the
/// same ones.
///
/// The last bucket also carries the step status: votes for a stop, the loss, and which parameters
/// have a gradient. The status is an operation of its own if there is a communication hook, if
/// nothing is summed, if the last gradient is summed in place, or if a device still computes the
/// sums.
///
/// Sums that a device still computes (reducer_options::devices) are those of one step at most: the
/// next `finish` waits for them and throws if one has failed.
///
/// Used by one lane. Autograd hooks never throw: `finish` throws their errors.
/// Destruction with sums in flight aborts the communicator and waits until it is quiescent.
class reducer {
public:
  struct parameter {
    std::string name;
    at::Tensor tensor;  ///< a leaf, dense; all on one device
    /// Bit i: belongs to optimizer i. 0 counts as optimizer 0.
    std::uint64_t optimizers = 1;
  };
  struct word {
    bool stop = false;
    double loss = 0;
    bool logged = false;  ///< see step_status
  };
  /// The backward that completes a window.
  struct last_backward {
    std::int32_t optimizer = 0;
    word mine;        ///< this rank's part of the status; the ranks' losses are summed
    at::Tensor loss;  ///< the root of backward; undefined: this rank has no backward
  };
  struct figures {
    bool stepped = false;                ///< some window was finished
    std::int64_t replaced = 0;           ///< gradients found outside their bucket
    std::int64_t stayed = 0;             ///< gradients summed in place, without a bucket
    std::int64_t early = 0;              ///< buckets sent while backward ran
    std::int64_t rebuilt = 0;            ///< how often the buckets were laid out again
    std::vector<std::size_t> buckets;    ///< number of parameters of each, in the order of sending
    bucket_caps caps;                    ///< in use
    double latency_seconds = 0;          ///< of a small all_reduce; 0: not measured
    double bytes_per_second = 0;         ///< of a large one
    std::chrono::nanoseconds waited{0};  ///< time in the communicator, submissions included
  };

  reducer(std::vector<parameter> parameters, std::shared_ptr<communicator> world,
          reducer_options options = {});
  ~reducer();
  reducer(const reducer&) = delete;
  reducer& operator=(const reducer&) = delete;

  /// Makes the gradients of this optimizer's parameters undefined. It is collective when the
  /// buckets are laid out again: all ranks call it at the same place.
  void zero(std::int32_t optimizer);
  /// The next backward completes the window.
  void begin(const last_backward& what);
  /// Called after backward: sends the remaining buckets, waits for all sums and returns the step
  /// status, which is the same on all ranks. Throws the error of an autograd hook, or the
  /// communicator's.
  word finish();
  /// Waits for the sums that a device still computes; throws if one has failed.
  void settle();
  /// Backward threw: no more buckets are sent. The caller must abort the communicator.
  void abandon() noexcept;
  /// In this window buckets are sent by `finish` only, because other collectives run in backward.
  void hold_back();

  const figures& seen() const;

private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace troupe
