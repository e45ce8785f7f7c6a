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

struct reducer_options {
  /// The first bucket is small, so that the first sum starts early. Not used once caps are tuned.
  std::size_t first_bucket_bytes = bucket_caps{}.first;
  /// Unset: 4 MiB, and from the second layout on what the communicator measured on its own memory.
  std::optional<std::size_t> bucket_bytes;
  /// False: buckets leave when backward has ended. For modules that run several backwards in one.
  bool overlap = true;
  /// See gradient_options.
  bool find_unused_parameters = false;
  bool static_graph = false;
  /// What sums a bucket; null: a plain all_reduce, the word travelling along.
  comm_hook hook;
  /// Where ranks share memory, a gradient of so many bytes is cheaper as an operation of its own
  /// than copied into a bucket.
  std::size_t stays_from_bytes = std::size_t{512} << 10;
  /// Bit i: optimizer i sums gradients itself (fused_step). Behind `finish` of its windows each
  /// `.grad` that some rank has holds this rank's part of it, zeros where it has none.
  std::uint64_t summed_elsewhere = 0;
  /// Monotonic; null: the machine's clock.
  std::function<std::chrono::nanoseconds()> now;
};

/// Life of a window (the micro-batches of one step): `zero`, then for each micro-batch a backward,
/// the last of them between `begin` and `finish`.
///
/// `.grad` of a parameter is undefined from `zero` until its gradient arrives; then it is a tensor
/// in bucket memory, into which later micro-batches accumulate. A `.grad` that somebody replaced is
/// copied into its place and put back (counted in `replaced`); one that was taken away counts as
/// zero. Behind `finish` it holds the sum over ranks, or is undefined where no rank had a gradient,
/// so that optimizers leave that parameter alone, as they do without Troupe.
///
/// Where ranks share memory, large gradients, and all that are summed elsewhere, stay in the tensor
/// that autograd made for them, and nothing is copied. Unless somebody else holds that memory or it
/// is not laid out as its parameter is: then it is copied like any other.
///
/// Buckets leave strictly in order, so ranks whose backward reaches parameters in another order, or
/// not at all, agree. The order is that of the parameters from the back at first, then the one in
/// which rank 0 saw the gradients of the first step arrive; behind that step ranks also time a few
/// all_reduces and agree on rank 0's caps for buckets. Neither changes a bit of any sum. Parameters
/// that do not require a gradient when a window begins take no part in it; all ranks freeze the
/// same ones.
///
/// Along with the last bucket travels a word: votes for a stop, the loss, and which parameters have
/// a gradient. With a hook, where nothing is summed, and behind a gradient that stays where it is,
/// the word travels alone.
///
/// Used by one lane. Autograd hooks never throw: what goes wrong in them is thrown by `finish`.
/// Destruction with sums in flight aborts the communicator and waits until it is quiescent.
class reducer {
public:
  struct parameter {
    std::string name;
    at::Tensor tensor;  ///< a leaf, dense, on the CPU
    /// Bit i: belongs to optimizer i. 0 counts as optimizer 0.
    std::uint64_t optimizers = 1;
  };
  struct word {
    bool stop = false;
    double loss = 0;
  };
  /// The backward that completes a window.
  struct last_backward {
    std::int32_t optimizer = 0;
    word mine;        ///< this rank's part of the word; its losses are added up
    at::Tensor loss;  ///< what backward begins at; undefined: this rank has no backward
  };
  struct figures {
    bool stepped = false;                ///< some window was finished
    std::int64_t replaced = 0;           ///< gradients found outside of their bucket
    std::int64_t stayed = 0;             ///< gradients summed where autograd put them
    std::int64_t early = 0;              ///< buckets that left while backward ran
    std::int64_t rebuilt = 0;            ///< times the buckets were laid out anew
    std::vector<std::size_t> buckets;    ///< parameters of each, in the order in which they leave
    bucket_caps caps;                    ///< in use
    double latency_seconds = 0;          ///< of a small all_reduce; 0: not measured
    double bytes_per_second = 0;         ///< of a large one
    std::chrono::nanoseconds waited{0};  ///< inside of the communicator, submissions included
  };

  reducer(std::vector<parameter> parameters, std::shared_ptr<communicator> world,
          reducer_options options = {});
  ~reducer();
  reducer(const reducer&) = delete;
  reducer& operator=(const reducer&) = delete;

  /// Forgets the gradients of this optimizer's parameters. Collective when the buckets are due to
  /// be laid out anew: all ranks call it at the same place.
  void zero(std::int32_t optimizer);
  /// The next backward completes the window.
  void begin(const last_backward& what);
  /// Backward has ended: what did not leave yet does, then waits for all. The same on all ranks.
  /// Throws what a hook could not, and what the communicator says.
  word finish();
  /// Backward threw: nothing more leaves. The group is of no further use and is to be aborted.
  void abandon() noexcept;
  /// Buckets leave at `finish` in this window, because other collectives run inside backward.
  void hold_back();

  const figures& seen() const;

private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace troupe
