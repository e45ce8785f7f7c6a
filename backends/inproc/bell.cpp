#include "backends/inproc/bell.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace troupe::inproc {

namespace {

// In pauses of some 25 ns. What is awaited is often that near; longer spinning would keep a thread
// that has to share this core from doing what is awaited.
constexpr int spins = 100;
// Together about what it costs to sleep and be woken (28 us where it was measured).
constexpr int yields = 20;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void bell::ring() noexcept {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  // A waiter counts itself before the kernel compares the word: one of the two sees the other.
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rings_), FUTEX_WAKE_PRIVATE, INT_MAX,
          nullptr, nullptr, 0);
}

void bell::wait(std::uint32_t seen, bool spin, std::optional<clock::time_point> until) noexcept {
  for (int turn = 0; turn < yields; ++turn) {
    for (int i = 0; spin && i < spins; ++i) {
      if (!quiet(seen)) return;
      relax();
    }
    if (!quiet(seen)) return;
    sched_yield();
  }
  timespec left{};
  if (until) {
    const auto rest = *until - clock::now();
    if (rest <= rest.zero()) return;
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(rest).count();
    left = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rings_), FUTEX_WAIT_PRIVATE, seen,
          until ? &left : nullptr, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void pause_briefly(std::uint32_t turn) noexcept {
  if (turn < 100)
    relax();
  else
    sched_yield();
}

}  // namespace troupe::inproc
