// Assigns gradients to buckets and computes the size of buckets. Pure functions, no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

/// Bytes that a bucket holds at most, unless a single gradient is larger.
struct bucket_caps {
  std::size_t first = std::size_t{256} << 10;  ///< small, so that the first sum starts early
  std::size_t others = std::size_t{4} << 20;
  friend bool operator==(const bucket_caps&, const bucket_caps&) = default;
};

/// One gradient.
struct bucket_item {
  std::size_t bytes = 0;
  int kind = 0;                  ///< gradients of different kinds (dtypes) share no bucket
  std::uint64_t optimizers = 1;  ///< nor do gradients of different sets of optimizers
  bool alone = false;            ///< has a bucket of its own
  friend bool operator==(const bucket_item&, const bucket_item&) = default;
};

/// Buckets, each with the indices of its items, in the order of sending: the order of their last
/// items, because a bucket cannot be sent before its last item. `order` lists indices of `items`.
/// One bucket per kind is filled at a time.
std::vector<std::vector<std::size_t>> cut_into_buckets(std::span<const std::size_t> order,
                                                       std::span<const bucket_item> items,
                                                       const bucket_caps& caps);

/// Caps at which the fixed cost of an operation is a sixteenth of its duration, rounded to powers
/// of two: 1 to 25 MiB, and an eighth of that for the first (at least 256 KiB). Impossible input
/// gives valid caps as well.
bucket_caps tuned_caps(double latency_seconds, double bytes_per_second);

}  // namespace troupe
