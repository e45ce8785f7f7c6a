// Copying into slots, which another core reads next.
#pragma once

#include <chrono>
#include <cstddef>

namespace troupe::shm {

/// memcpy into slots of one rank, by the method that is faster at present. Not thread-safe: only a
/// channel's driver uses it. Copied bytes are ordered before later writes.
///
/// Plain stores leave the bytes in the caches, where the reader finds them; but a line that the
/// reader's core still holds must be taken from it first, one after the other. Stores past the
/// caches never wait for that, and cost the way to memory and back. Which is cheaper depends on how
/// much went through the caches since the slot was read and on where the host has put the cores, so
/// that it changes while a job runs. Measured: plain 2.6 to 30 ns a line, past the caches 4 to 6
/// and as much again for the reader. So a page in eight is copied plainly under the clock, and
/// fewer while that is slow.
class slot_writer {
public:
  /// Before the first `write` of an operation that brings so many bytes in all: little is written
  /// past the caches without a try, as slots that come round soon are still at the reader's.
  void begin(std::size_t bytes) noexcept { tries_ = bytes >= worth_trying; }
  void write(void* to, const void* from, std::size_t bytes) noexcept;

  /// The next write is to be a try, and what one has shown.
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
