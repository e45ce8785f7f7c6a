#include "apps/bench/bare_loops.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace troupe::program {

namespace {

constexpr std::size_t block = 1024;  // floats: a partial sum that stays in the first-level cache

#if defined(__x86_64__)
#define TROUPE_FOR_AVX2 [[gnu::target_clones("avx2", "default")]]
#else
#define TROUPE_FOR_AVX2
#endif

TROUPE_FOR_AVX2 void add_pair(float* a, float* b, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}

TROUPE_FOR_AVX2 void add_to(float* partial, const float* more, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) partial[i] += more[i];
}

template <class Take>
void sum_blocks(std::span<float* const> arrays, std::size_t count, const Take& take) {
  alignas(64) std::array<float, block> partial;
  for (std::size_t from = 0; from < count; from += block) {
    const auto n = std::min(block, count - from);
    std::memcpy(partial.data(), arrays.front() + from, n * sizeof(float));
    for (const auto* array : arrays.subspan(1)) add_to(partial.data(), array + from, n);
    take(partial.data(), from, n);
  }
}

}  // namespace

void bare_all_reduce(std::span<float* const> arrays, std::size_t count) {
  if (arrays.size() == 2) return add_pair(arrays[0], arrays[1], count);
  sum_blocks(arrays, count, [&](const float* sum, std::size_t from, std::size_t n) {
    for (auto* array : arrays) std::memcpy(array + from, sum, n * sizeof(float));
  });
}

void bare_reduce(std::span<float* const> arrays, float* out, std::size_t count) {
  sum_blocks(arrays, count, [&](const float* sum, std::size_t from, std::size_t n) {
    std::memcpy(out + from, sum, n * sizeof(float));
  });
}

void bare_add(float* data, const float* more, std::size_t count) { add_to(data, more, count); }

void bare_copy(const float* from, std::span<float* const> to, std::size_t count) {
  if (count == 0) return;  // an empty array may be null, which memcpy does not allow
  for (auto* one : to) std::memcpy(one, from, count * sizeof(float));
}

}  // namespace troupe::program
