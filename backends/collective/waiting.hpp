// Waiting for each other, of threads and of processes that share memory: spin while cores are free,
// yield, then sleep in the kernel.
#pragma once

#include "backends/running_clock.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace troupe {

/// One step of waiting for another thread that is at work and needs no help.
void pause_briefly(std::uint32_t turn) noexcept;

/// Cores that this process may use (its affinity), at least 1.
int allowed_cores() noexcept;

/// The core that the calling thread is on, counted from 1; 0 if the kernel does not say. It may be
/// on another one when this returns.
std::uint32_t current_core() noexcept;

/// The core on which a rank was seen last. A thread that waits for the rank must not spin on that
/// core, because the rank needs it. The object may lie in memory that processes share. All zeros:
/// the rank was not seen yet.
class whereabouts {
public:
  /// Says where the calling thread is. Written only when that has changed: others keep reading it.
  void here() noexcept {
    const auto core = current_core();
    if (core_.load(std::memory_order_relaxed) != core) core_.store(core, std::memory_order_relaxed);
  }
  bool same_core(const whereabouts& other) const noexcept {
    const auto core = core_.load(std::memory_order_relaxed);
    return core != 0 && core == other.core_.load(std::memory_order_relaxed);
  }

private:
  std::atomic<std::uint32_t> core_{0};
};

/// Rung when something happened that waiters may want to look at. Any number of ringers and
/// waiters. With `Shared` it may lie in memory that processes share, where zeroes are a new bell.
///
/// A waiter reads `now`, looks, and waits for the next ring if there was nothing. A thread that
/// rings every time it changes something calls `ring`. A thread that does not want to write to the
/// bell's cache line while no waiter sleeps calls `ring_sleepers`; then waiters look once more
/// themselves: `wait` asks `ready` before it sleeps.
template <bool Shared>
class basic_bell {
public:
  using clock = running_clock;

  std::uint32_t now() const noexcept { return rings_.load(std::memory_order_seq_cst); }
  void ring() noexcept;
  /// The change has to be a sequentially consistent write before.
  void ring_sleepers() noexcept {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) ring();
  }
  /// Returns after a ring later than `seen`, when `ready()`, at `until`, or earlier for no reason.
  /// `spin`: a core is free for this thread, so looking is cheaper than sleeping.
  template <class Ready>
  void wait(std::uint32_t seen, bool spin, std::optional<clock::time_point> until,
            Ready&& ready) noexcept {
    const bool crowded = is_crowded();
    for (int turn = 0; turn < yields; ++turn) {
      for (int i = 0; spin && i < spins; ++i) {
        if (now() != seen || ready()) return;
        pause_briefly(0);
      }
      if (now() != seen || ready()) return;
      if (crowded || !yield()) break;
    }
    sleep(seen, until, ready);
  }
  void wait(std::uint32_t seen, bool spin, std::optional<clock::time_point> until) noexcept {
    wait(seen, spin, until, [] { return false; });
  }
  /// As `wait`, but sleeps in the kernel at once, for threads that may return some 30 us later.
  template <class Ready>
  void sleep(std::uint32_t seen, std::optional<clock::time_point> until, Ready&& ready) noexcept {
    // A waiter counts itself before it looks for the last time and before the kernel compares the
    // word: of ringer and waiter, one sees the other.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (!ready()) sleep_in_kernel(seen, until);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

private:
  // Counted in pauses of some 25 ns. The ring often comes within that time. Longer spinning would
  // keep the core from the thread that rings, if the two share a core.
  static constexpr int spins = 100;
  // All yields together take about as long as to sleep and be woken (measured: 28 us).
  static constexpr int yields = 20;
  // A yield that takes so long has given the core to a thread that computes. The kernel gives the
  // core back sooner to a thread that sleeps. So the next waits do not yield.
  static constexpr std::chrono::microseconds long_yield{200};
  static constexpr std::uint32_t waits_without_yield = 64;

  bool is_crowded() noexcept {
    const auto left = crowded_.load(std::memory_order_relaxed);
    if (left != 0) crowded_.store(left - 1, std::memory_order_relaxed);
    return left != 0;
  }
  /// False if the core went to foreign work.
  bool yield() noexcept;
  void sleep_in_kernel(std::uint32_t seen, std::optional<clock::time_point> until) noexcept;

  std::atomic<std::uint32_t> rings_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::uint32_t> crowded_{0};  // a guess: waiters may overwrite each other's
};

/// A bell for threads of one process.
using bell = basic_bell<false>;
/// A bell for processes of one host.
using shared_bell = basic_bell<true>;

/// A mutex for sections of a few hundred nanoseconds: going to sleep at once, as std::mutex does,
/// costs a hundred times what the section takes. A thread that has to wait looks without writing,
/// so that the holder keeps the cache line.
class brief_mutex {
public:
  brief_mutex() = default;
  brief_mutex(const brief_mutex&) = delete;
  brief_mutex& operator=(const brief_mutex&) = delete;
  void lock() noexcept {
    if (!try_lock()) lock_later();
  }
  void unlock() noexcept {
    if (word_.exchange(open, std::memory_order_release) == awaited) word_.notify_one();
  }

private:
  static constexpr std::uint32_t open = 0;
  static constexpr std::uint32_t held = 1;
  static constexpr std::uint32_t awaited = 2;  // held, and a waiter may be asleep

  bool try_lock() noexcept {
    auto was = open;
    return word_.compare_exchange_strong(was, held, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void lock_later() noexcept;

  std::atomic<std::uint32_t> word_{open};
};

}  // namespace troupe
