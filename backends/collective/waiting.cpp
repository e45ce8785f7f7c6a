#include "backends/collective/waiting.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <thread>

namespace troupe {

void pause_briefly(std::uint32_t turn) noexcept {
  if (turn >= 100) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int allowed_cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::uint32_t current_core() noexcept {
  const int core = sched_getcpu();
  return core < 0 ? 0 : static_cast<std::uint32_t>(core) + 1;
}

template <bool Shared>
void basic_bell<Shared>::ring() noexcept {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rings_),
          Shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

template <bool Shared>
bool basic_bell<Shared>::yield() noexcept {
  const auto before = std::chrono::steady_clock::now();
  sched_yield();
  if (std::chrono::steady_clock::now() - before < long_yield) return true;
  crowded_.store(waits_without_yield, std::memory_order_relaxed);
  return false;
}

template <bool Shared>
void basic_bell<Shared>::sleep_in_kernel(std::uint32_t seen,
                                         std::optional<clock::time_point> until) noexcept {
  timespec left{};
  if (until) {
    const auto now = clock::now();
    if (*until <= now) return;
    const auto rest = std::min(*until - now, clock::slice);
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(rest).count();
    left = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rings_),
          Shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, until ? &left : nullptr, nullptr, 0);
}

void brief_mutex::lock_later() noexcept {
  for (std::uint32_t turn = 0; turn < 200; ++turn) {
    if (word_.load(std::memory_order_relaxed) == open && try_lock()) return;
    pause_briefly(turn);
  }
  while (word_.exchange(awaited, std::memory_order_acquire) != open)
    word_.wait(awaited, std::memory_order_relaxed);
}

template class basic_bell<false>;
template class basic_bell<true>;

}  // namespace troupe
