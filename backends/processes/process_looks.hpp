// Observes a child process from outside: whether it is stopped, and whether it makes progress.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

namespace troupe {

/// Whether the child of this process is stopped now (SIGSTOP, SIGTSTP, ...). A debugger that holds
/// it does not count. Another wait of this process finds the same stop again.
bool is_stopped(pid_t child);

/// Processor time that the process has used, in hundredths of a second, counted from 1; 0 when it
/// is not known.
std::int64_t processor_time(pid_t process);

/// How long a process may send nothing, not even a heartbeat: max(20 D, 10 s), five times as long
/// as it may be stopped. A thread that runs nothing else serves its link, but on a machine with too
/// many processes that thread may wait for a core for seconds. The kernel reports a process that
/// has ended or is stopped, so silence is the last sign to rely on, and may be noticed late.
std::chrono::nanoseconds silence_limit(std::chrono::nanoseconds detect);

/// Decides whether a process has been stopped for too long: a number of consecutive checks must
/// have found it stopped. Checks are counted instead of time, so that a parent that was itself
/// stopped with its whole job (Ctrl-Z) does not kill its children when it continues.
class stop_watch {
public:
  static constexpr int looks = 8;

  explicit stop_watch(std::chrono::nanoseconds detect);

  /// max(4 D, 2 s): a stopped process is detected within this time.
  std::chrono::nanoseconds limit() const { return limit_; }
  /// The time between two checks.
  std::chrono::nanoseconds between() const { return limit_ / looks; }
  /// Records one check. True if the process has been stopped for too long.
  bool look(bool stopped);

private:
  std::chrono::nanoseconds limit_;
  int in_a_row_ = 0;
};

}  // namespace troupe
