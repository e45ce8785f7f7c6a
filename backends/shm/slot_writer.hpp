// Copying into slots, which another core reads next.
#pragma once

#include <chrono>
#include <cstddef>

namespace troupe::shm {

/// Copies into slots of one rank, by the method that is faster at present. Not thread-safe: only a
/// thread that drives the channel uses it. Copied bytes are ordered before later writes.
///
/// - Plain stores (memcpy) leave the bytes in the caches, where the reader finds them. But cache
///   lines that the reader's core still holds must first be taken from that core, one by one.
///   Measured: 2.6 to 30 ns a line.
/// - Stores past the caches never wait for the reader's core, but the bytes go to memory and back.
///   Measured: 4 to 6 ns a line, and as much again for the reader.
///
/// The faster method depends on how many bytes went through the caches since the slot was read, and
/// on the cores that the host has given to the ranks. It may change while a job runs. So the writer
/// tries plain stores on one page and measures the time. The next try comes 8 pages later, or 256
/// pages later if the plain stores were slow.
class slot_writer {
public:
  /// Called before the first `write` of an operation that writes so many bytes in all. An operation
  /// with few bytes makes no try, and writes past the caches: it reuses its slots soon, while the
  /// reader's core still holds their lines.
  void begin(std::size_t bytes) noexcept { tries_ = bytes >= worth_trying; }
  void write(void* to, const void* from, std::size_t bytes) noexcept;

  /// Whether the next page is a try, and the time that a try took.
  bool due() const noexcept { return tries_ && until_try_ == 0; }
  void learn(std::chrono::nanoseconds took, std::size_t bytes) noexcept;
  bool plain() const noexcept { return tries_ && plain_; }

private:
  static constexpr std::size_t worth_trying = std::size_t{512} << 10;

  void wrote(std::size_t bytes) noexcept { until_try_ -= bytes < until_try_ ? bytes : until_try_; }

  bool tries_ = false;
  bool plain_ = false;
  std::size_t until_try_ = 0;  // bytes
};

}  // namespace troupe::shm
