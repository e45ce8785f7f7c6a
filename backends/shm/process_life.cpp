#include "backends/shm/control_segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace troupe::shm {

namespace {

// Field 22 of /proc/PID/stat; 0 if there is no such process (or no /proc).
std::uint64_t birth_of(std::int32_t pid) {
  const file_descriptor file{
      open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)};
  if (file.get() < 0) return 0;
  std::array<char, 1024> text{};
  if (read(file.get(), text.data(), text.size() - 1) <= 0) return 0;
  const char* at = std::strrchr(text.data(), ')');  // the name before it may contain anything
  for (int field = 2; at && field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
  }
  return at ? std::strtoull(at, nullptr, 10) : 0;
}

std::uint64_t own_namespace() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

}  // namespace

process_life process_life::own() {
  const auto pid = static_cast<std::int32_t>(getpid());
  return {pid, birth_of(pid), own_namespace()};
}

file_descriptor process_life::watch() const {
  if (numbers != own_namespace()) return file_descriptor{};
  file_descriptor file{static_cast<int>(syscall(SYS_pidfd_open, pid, 0))};
  // In this order: what has the number now may be another process.
  if (file.get() >= 0 && birth_of(pid) != birth) return file_descriptor{};
  return file;
}

bool process_life::over() const {
  if (pid == getpid() || numbers != own_namespace()) return false;
  const auto file = watch();
  if (file.get() < 0) return birth_of(pid) != birth;
  pollfd ended{file.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 1;
}

}  // namespace troupe::shm
