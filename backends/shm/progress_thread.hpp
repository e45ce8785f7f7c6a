// The thread of one handle: drives operations without a waiter, and notices processes that end.
#pragma once

#include "backends/shm/member.hpp"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace troupe::shm {

/// Sleeps while nothing is in flight. Otherwise it looks every 0.2 to 2 ms for an operation for
/// which no thread waits, and drives it. Operations with a waiter are left to the waiter. While a
/// member keeps an operation waiting for 20 ms, it looks at the member's process every 10 ms: it
/// names a process that is ending before the kernel has released its memory (0.2 s per GiB).
class progress_thread {
public:
  /// Throws user_error if the process may not have another thread or descriptor.
  progress_thread(std::shared_ptr<member> of,
                  std::shared_ptr<shm_rendezvous::control_segment> control_segment, admission at);
  ~progress_thread();
  progress_thread(const progress_thread&) = delete;
  progress_thread& operator=(const progress_thread&) = delete;

  /// Called when an operation is in flight. Only the first call after a pause wakes the thread.
  void call() noexcept;

private:
  struct watched {
    std::int32_t rank;
    process_life life;
    file_descriptor file;
    int late = 0;  ///< looks in a row at which an operation may have waited for it
  };
  void run() noexcept;
  void look_for_members();
  void sleep();
  void look_at_late_members();
  void lost(const watched& who) noexcept;
  void serve();

  const std::shared_ptr<member> member_;
  const std::shared_ptr<shm_rendezvous::control_segment> control_segment_;
  const admission at_;
  const file_descriptor alarm_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> watching_{false};
  std::vector<watched> peers_;
  std::vector<bool> known_;
  bool all_known_ = false;
  std::chrono::steady_clock::time_point next_look_{};
  std::size_t next_peer_ = 0;
  std::chrono::microseconds nap_{0};
  int quiet_ = 0;
  std::thread thread_;
};

}  // namespace troupe::shm
