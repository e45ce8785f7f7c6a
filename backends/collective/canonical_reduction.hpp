// The canonical reduction: what a reduction over ranks (or shards) must yield, to the bit. Shared
// by the host communicators, by the serial reference and by tests.
#pragma once

#include "troupe/communicator.hpp"

#include <bit>
#include <cstddef>
#include <span>
#include <string>

namespace troupe {

/// Where the tree over `count` >= 2 leaves splits: at the largest power of two below the count.
constexpr std::size_t canonical_split(std::size_t count) { return std::bit_floor(count - 1); }

/// Why `operation` is not defined for `type`, in words for users; empty when it is.
std::string refusal(dtype type, reduction operation);

/// Code paths of the kernels. All yield the same bits; tests compare them.
enum class instruction_set : std::uint8_t { baseline, avx2 };
/// The fastest one this machine has.
instruction_set best_instruction_set();

/// Reduces `sources` (leaf 0 first) element by element along the canonical tree and writes the
/// result to every one of `targets`, `count` elements each.
///
/// A target is one of the sources or overlaps none of them. One source: a copy, bit by bit.
/// Otherwise: f16 and bf16 accumulate in f32 and round once (to nearest, ties to even); `mean`
/// divides the sum in the accumulation type before it rounds, and where that sum overflows sums
/// leaves scaled down by a power of two first; NaN results have one pattern (positive, quiet, no
/// payload); min and max take -0 to be below +0; bool results are 0 or 1. The caller's rounding and
/// flush-to-zero modes do not matter. Thread-safe; throws internal_error if `refusal` is not empty
/// or there is no source.
void canonical_reduce(dtype type, reduction operation, std::span<const void* const> sources,
                      std::span<void* const> targets, std::size_t count,
                      instruction_set use = best_instruction_set());

}  // namespace troupe
