// Waiting of threads for each other: spin while cores are free, yield, then sleep on a futex.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

namespace troupe::inproc {

/// Rung when something happened that waiters may want to look at. A waiter reads `now`, looks, and
/// waits for the next ring if there was nothing. Any number of ringers and waiters.
class bell {
public:
  using clock = std::chrono::steady_clock;

  std::uint32_t now() const noexcept { return rings_.load(std::memory_order_seq_cst); }
  void ring() noexcept;
  /// Returns after a ring later than `seen`, at `until`, or earlier for no reason. `spin`: a core
  /// is free for this thread, so looking is cheaper than sleeping.
  void wait(std::uint32_t seen, bool spin, std::optional<clock::time_point> until) noexcept;

private:
  bool quiet(std::uint32_t seen) const noexcept { return now() == seen; }

  std::atomic<std::uint32_t> rings_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

/// One step of waiting for another thread that is at work and needs no help.
void pause_briefly(std::uint32_t turn) noexcept;

/// A mutex for sections of a few hundred nanoseconds: going to sleep at once, as std::mutex does,
/// costs a hundred times what the section takes.
class brief_mutex {
public:
  void lock() {
    for (std::uint32_t turn = 0; turn < 200; ++turn) {
      if (mutex_.try_lock()) return;
      pause_briefly(turn);
    }
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

private:
  std::mutex mutex_;
};

}  // namespace troupe::inproc
