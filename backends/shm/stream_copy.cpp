#include "backends/shm/stream_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

// ThreadSanitizer does not see stores past the caches; it is to see these.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define TROUPE_STREAMS 1
#include <emmintrin.h>
#endif

namespace troupe::shm {

void stream_copy(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes == 0) return;
#if defined(TROUPE_STREAMS)
  constexpr std::size_t line = 64;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const auto ahead =
      std::min((line - reinterpret_cast<std::uintptr_t>(target) % line) % line, bytes);
  std::memcpy(target, source, ahead);
  target += ahead;
  source += ahead;
  bytes -= ahead;
  for (; bytes >= line; bytes -= line, target += line, source += line) {
    const auto* in = reinterpret_cast<const __m128i*>(source);
    auto* out = reinterpret_cast<__m128i*>(target);
    const auto a = _mm_loadu_si128(in);
    const auto b = _mm_loadu_si128(in + 1);
    const auto c = _mm_loadu_si128(in + 2);
    const auto d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(target, source, bytes);
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace troupe::shm
