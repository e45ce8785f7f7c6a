#include "apps/command_line/descriptors.hpp"

#include <sys/file.h>
#include <sys/resource.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace troupe::program {

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool lock_alone(int file) {
  for (int more = 20;; --more) {
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK || more == 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  }
}

}  // namespace troupe::program
