#include "backends/processes/process_looks.hpp"

#include <sys/wait.h>
#include <time.h>

#include <algorithm>

namespace troupe {

bool is_stopped(pid_t child) {
  siginfo_t info{};
  const auto done = ::waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED | WNOHANG | WNOWAIT);
  return done == 0 && info.si_pid == child;
}

std::int64_t processor_time(pid_t process) {
  constexpr std::int64_t per_second = 100;
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
  return 1 + used.tv_sec * per_second + used.tv_nsec / (1'000'000'000 / per_second);
}

std::chrono::nanoseconds silence_limit(std::chrono::nanoseconds detect) {
  return std::max<std::chrono::nanoseconds>(20 * detect, std::chrono::seconds{10});
}

stop_watch::stop_watch(std::chrono::nanoseconds detect)
    : limit_(std::max<std::chrono::nanoseconds>(4 * detect, std::chrono::seconds{2})) {}

bool stop_watch::look(bool stopped) {
  in_a_row_ = stopped ? in_a_row_ + 1 : 0;
  return in_a_row_ >= looks;
}

}  // namespace troupe
