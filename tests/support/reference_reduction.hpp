// The result of a reduction, computed one element at a time by plain recursion. It is written
// independently of backends/canonical_reduction, so that each checks the other.
#pragma once

#include "troupe/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace troupe::testing {

using bytes = std::vector<std::byte>;

/// The bytes that every rank ends with, given the bytes that each rank contributed.
bytes reference_reduction(dtype type, reduction operation, const std::vector<bytes>& leaves);

/// `count` elements of one rank: ordinary numbers, and in floating types NaNs with payload,
/// infinities, zeros of both signs, subnormals and the largest numbers. A pure function of its
/// arguments.
bytes odd_values(dtype type, std::size_t count, std::int32_t rank, std::uint64_t seed);

inline const std::vector<dtype> all_dtypes = {dtype::u8,  dtype::i8,      dtype::i16,  dtype::i32,
                                              dtype::i64, dtype::f16,     dtype::bf16, dtype::f32,
                                              dtype::f64, dtype::boolean, dtype::c64,  dtype::c128};
inline const std::vector<reduction> all_reductions = {
    reduction::sum, reduction::mean, reduction::min, reduction::max, reduction::product};

/// For large memory: comparing vectors of bytes goes byte by byte.
inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline buffer whole(bytes& memory, dtype type) {
  return {memory.data(), memory.size() / size_of(type), type};
}

}  // namespace troupe::testing
