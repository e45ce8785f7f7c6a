// Which samples a micro-batch consumes: a pure function that another program can recompute. No
// state, no LibTorch; thread-safe.
//
// permutation(seed, epoch, size), by Fisher and Yates from the end: for i = size-1 .. 1 swap entry
// i with entry j, j = draw(i + 1), entries being 0 .. size-1 at first. draw(n) is the high 64 bits
// of the 128-bit product x * n, where x is the next output of SplitMix64 (Steele, Lea, Flood 2014;
// state += 0x9e3779b97f4a7c15; z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9; z = (z ^ z >> 27) *
// 0x94d049bb133111eb; z ^ z >> 31), whose state starts as mix(mix(seed) + epoch), mix being that
// same output function applied to (argument + 0x9e3779b97f4a7c15).
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

/// The order in which epoch `epoch` visits 0 .. size-1. O(size). size < 2^40.
std::vector<std::int64_t> permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t size);
/// SplitMix64's output function of (x + golden gamma): keys derived streams everywhere in Troupe.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

/// A contiguous piece of an epoch's order: [first, first + count).
struct piece {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const piece&, const piece&) = default;
};

/// How an epoch of `size` samples is cut: micro-batch b takes the next min(ranks x batch_size,
/// rest) entries; rank r gets the r-th contiguous piece of it, earlier ranks one more when it does
/// not divide. An epoch that is resumed counts its micro-batches on: number `first_batch` begins at
/// entry `first_sample`, and what came before it, cut by any ranks and batch size, is done.
struct data_layout {
  std::int64_t size = 0;
  std::int64_t ranks = 1;
  std::int64_t batch_size = 1;
  std::int64_t first_batch = 0;
  std::int64_t first_sample = 0;

  /// The same ranks and batch size for the rest of an epoch.
  data_layout resumed(std::int64_t batch, std::int64_t sample) const {
    return {size, ranks, batch_size, batch, sample};
  }
  /// Micro-batches of an epoch: first_batch + ceil((size - first_sample) / (ranks x batch_size)).
  std::int64_t batches() const;
  /// What all ranks take in micro-batch b; nothing of those before `first_batch`.
  piece of_batch(std::int64_t batch) const;
  /// What they take in micro-batches first .. last.
  piece of_batches(std::int64_t first, std::int64_t last) const;
  /// What rank r takes of it; count 0 when there is nothing left for it. Throws internal_error for
  /// a micro-batch before `first_batch`: its samples are consumed.
  piece of_rank(std::int64_t batch, std::int64_t rank) const;
  /// Samples of all ranks in micro-batches first .. last.
  std::int64_t samples(std::int64_t first, std::int64_t last) const;
};

}  // namespace troupe
