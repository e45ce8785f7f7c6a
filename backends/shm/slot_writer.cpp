#include "backends/shm/slot_writer.hpp"

#include "backends/shm/layout.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

// ThreadSanitizer does not see stores past the caches; it is to see these.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define TROUPE_STREAMS 1
#include <emmintrin.h>
#endif

namespace troupe::shm {

namespace {

constexpr std::size_t page = 4096;

#if defined(TROUPE_STREAMS)
void write_past_caches(std::byte* target, const std::byte* source, std::size_t bytes) noexcept {
  constexpr std::size_t little = 2048;  // sooner there from cache to cache
  if (bytes <= little) {
    std::memcpy(target, source, bytes);
    return;
  }
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
}
#else
void write_past_caches(std::byte* target, const std::byte* source, std::size_t bytes) noexcept {
  std::memcpy(target, source, bytes);
}
#endif

}  // namespace

void slot_writer::write(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes == 0) return;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  if (!tries_) return write_past_caches(target, source, bytes);
  using clock = std::chrono::steady_clock;
  while (bytes != 0) {
    const bool tries = due();
    const auto most = tries ? page : until_try_;
    const auto now = std::min(bytes, std::max(most, page));
    const auto before = tries ? clock::now() : clock::time_point{};
    if (tries || plain_)
      std::memcpy(target, source, now);
    else
      write_past_caches(target, source, now);
    wrote(now);
    if (tries && now == page) learn(clock::now() - before, now);
    target += now;
    source += now;
    bytes -= now;
  }
}

void slot_writer::learn(std::chrono::nanoseconds took, std::size_t bytes) noexcept {
  // In ns per line: between the cost of a line that no core holds and one held by another core.
  constexpr std::size_t slow_line = 14;
  constexpr std::size_t tries_apart = 8 * page;
  constexpr std::size_t tries_apart_when_slow = 256 * page;
  plain_ = static_cast<std::size_t>(took.count()) < bytes / line * slow_line;
  until_try_ = plain_ ? tries_apart : tries_apart_when_slow;
}

}  // namespace troupe::shm
