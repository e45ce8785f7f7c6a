// The memory traffic that a collective cannot avoid, as plain loops: the reference of `bench
// collectives`. No synchronisation, no peers: each rank runs its share over memory of its own.
#pragma once

#include <cstddef>
#include <span>

namespace troupe::program {

/// Reads `count` elements of every array, adds, writes the sum to every array.
void bare_all_reduce(std::span<float* const> arrays, std::size_t count);
/// The same, but writes the sum to `out` only.
void bare_reduce(std::span<float* const> arrays, float* out, std::size_t count);
/// Adds `more` to `data`.
void bare_add(float* data, const float* more, std::size_t count);
/// Copies `from` to each of `to`.
void bare_copy(const float* from, std::span<float* const> to, std::size_t count);

}  // namespace troupe::program
