// What a parent sees of a child without its help: whether it is stopped, whether it makes progress.
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

/// Counts looks at a process: it has been stopped for too long when so many looks in a row found it
/// stopped. Looks are counted and not the clock, so that a parent which was itself stopped, with
/// all of its job (Ctrl-Z), blames nobody when it goes on.
class stop_watch {
public:
  static constexpr int looks = 8;

  explicit stop_watch(std::chrono::nanoseconds detect);

  /// max(4 D, 2 s): a process that is stopped is found within this time.
  std::chrono::nanoseconds limit() const { return limit_; }
  /// The time from one look to the next.
  std::chrono::nanoseconds between() const { return limit_ / looks; }
  /// One look. True when the process has been stopped for too long.
  bool look(bool stopped);

private:
  std::chrono::nanoseconds limit_;
  int in_a_row_ = 0;
};

}  // namespace troupe
