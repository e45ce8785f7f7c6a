// The loops under canonical_reduction.cpp: one table of them per dtype, reduction and instruction
// set.
#pragma once

#include "backends/collective/canonical_reduction.hpp"

#include <cstddef>
#include <span>

namespace troupe::detail {

/// Loops over `n` elements. A leaf is memory of a rank (elements as stored), a partial is scratch
/// (elements in the accumulation type). Exactly equal pointers may alias, other overlap not.
struct canonical_kernels {
  std::size_t element = 0;      ///< bytes of a leaf's element
  std::size_t accumulator = 0;  ///< bytes of a partial's element
  std::size_t per_count = 1;    ///< loop elements per element of the buffer (2: complex as reals)
  void (*leaves)(const void* left, const void* right, void* partial, std::size_t n) = nullptr;
  void (*leaf)(void* left_partial, const void* right, std::size_t n) = nullptr;
  void (*partials)(void* left_partial, const void* right_partial, std::size_t n) = nullptr;
  /// Rounds and makes NaN canonical.
  void (*store)(const void* partial, void* out, std::size_t n) = nullptr;
  /// Two leaves and the result in one pass.
  void (*pair)(const void* left, const void* right, void* x, void* y, std::size_t n) = nullptr;
  /// Mean only, else null: divides a partial by the number of leaves; false if it met something
  /// that is not finite.
  bool (*divide)(void* partial, std::size_t n, std::size_t leaves) = nullptr;
  /// Mean only: computes anew what is not finite, from leaves that are scaled down first.
  void (*rescue)(std::span<const void* const> leaves, std::size_t first, void* partial,
                 std::size_t n) = nullptr;
};

/// Precondition: `refusal(type, operation)` is empty.
canonical_kernels kernels_of(dtype type, reduction operation, instruction_set use);

}  // namespace troupe::detail
