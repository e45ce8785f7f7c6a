// Time without the time in which the process was stopped: by SIGSTOP, by a shell's Ctrl-Z, by a
// container or a cluster that pauses a job.
//
// A process cannot ask the kernel how long it was stopped. So a time that is read regularly counts
// at most `longest_gap` between two readings. A machine that keeps the reader off the processor for
// longer gains time as well.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>

namespace troupe {

/// Subtracts from a steady clock's readings what exceeds the longest gap between two of them. Any
/// thread.
class running_time {
public:
  using duration = std::chrono::nanoseconds;

  constexpr explicit running_time(duration longest_gap) noexcept : longest_gap_(longest_gap) {}

  /// The running time at `steady`, the reading of a steady clock (not 0). Less than `longest_gap` /
  /// 16 may pass between two readings without the second one being kept.
  duration read(duration steady) noexcept {
    if (steady.count() - last_.load(std::memory_order_acquire) >= longest_gap_.count() / 16)
      keep(steady);
    return steady - stood_still();
  }
  /// What `read` has subtracted so far.
  duration stood_still() const noexcept {
    return duration{stood_still_.load(std::memory_order_acquire)};
  }

private:
  void keep(duration steady) noexcept;

  const duration longest_gap_;
  std::atomic<duration::rep> last_{0};  // the last reading that was kept; 0: none
  std::atomic<duration::rep> stood_still_{0};
  std::mutex keeping_;
};

/// The clock of the collectives' deadlines: a deadline names no rank for a time in which no rank
/// could compute. One for the process; any thread. A thread that waits reads it at least once in
/// `slice`: `next_look` gives the time until which it may sleep.
class running_clock {
public:
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<running_clock>;
  static constexpr bool is_steady = true;
  static constexpr duration slice = std::chrono::seconds{1};
  static constexpr duration longest_gap = 2 * slice;

  static time_point now() noexcept;
  /// The earlier of `until` and one slice from now.
  static time_point next_look(time_point until) noexcept;
};

}  // namespace troupe
