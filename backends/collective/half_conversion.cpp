#include "backends/collective/half_conversion.hpp"

#include "troupe/failure.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

namespace troupe::detail {

#if defined(__x86_64__)

#define TROUPE_F16C [[gnu::target("avx2,f16c")]]

namespace {

constexpr std::size_t width = 8;

TROUPE_F16C inline void widen(const std::uint16_t* from, float* to) {
  _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

TROUPE_F16C inline void narrow(const float* from, std::uint16_t* to) {
  const auto x = _mm256_loadu_ps(from);
  const auto nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  const auto clean = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace

bool converts_halves() { return __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx2"); }

TROUPE_F16C void widen_halves(const std::uint16_t* from, float* to, std::size_t n) {
  std::size_t i = 0;
  for (; i + width <= n; i += width) widen(from + i, to + i);
  if (i == n) return;
  std::uint16_t rest[width] = {};
  float wide[width];
  std::copy(from + i, from + n, rest);
  widen(rest, wide);
  std::copy_n(wide, n - i, to + i);
}

TROUPE_F16C void narrow_to_halves(const float* from, std::uint16_t* to, std::size_t n) {
  std::size_t i = 0;
  for (; i + width <= n; i += width) narrow(from + i, to + i);
  if (i == n) return;
  float rest[width] = {};
  std::uint16_t narrow_ones[width];
  std::copy(from + i, from + n, rest);
  narrow(rest, narrow_ones);
  std::copy_n(narrow_ones, n - i, to + i);
}

#else

bool converts_halves() { return false; }
void widen_halves(const std::uint16_t*, float*, std::size_t) {
  throw internal_error("widen_halves: not on this processor");
}
void narrow_to_halves(const float*, std::uint16_t*, std::size_t) {
  throw internal_error("narrow_to_halves: not on this processor");
}

#endif

}  // namespace troupe::detail
