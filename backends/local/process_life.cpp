#include "backends/local/process_life.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

namespace troupe {

namespace {

// PF_EXITING in the kernel's sources: the thread runs no more of the program's code.
constexpr std::uint64_t exiting_flag = 0x4;

struct thread_state {
  std::uint64_t flags = 0;  // field 9 of a stat file
  std::uint64_t birth = 0;  // field 22
  int status = 0;           // field 52: as waitpid reports it; 0 if it is hidden
};

// None if there is no such process or thread, no /proc, or no free descriptor.
std::optional<thread_state> read_stat(const std::string& path) {
  const file_descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)};
  if (file.get() < 0) return std::nullopt;
  std::array<char, 1024> text{};
  if (read(file.get(), text.data(), text.size() - 1) <= 0) return std::nullopt;
  const char* at = std::strrchr(text.data(), ')');  // the name before it may contain anything
  thread_state state;
  int field = 2;
  for (; at && field <= 52; ++field) {
    if (field == 9) state.flags = std::strtoull(at, nullptr, 10);
    if (field == 22) state.birth = std::strtoull(at, nullptr, 10);
    if (field == 52) state.status = static_cast<int>(std::strtol(at, nullptr, 10));
    at = std::strchr(at + 1, ' ');
  }
  if (field <= 22) return std::nullopt;
  return state;
}

// 0 if it cannot be read.
std::uint64_t birth_of(std::int32_t pid) {
  const auto state = read_stat(fmt::format("/proc/{}/stat", pid));
  return state ? state->birth : 0;
}

// False if the threads cannot be listed.
bool all_threads_exit(std::int32_t pid) {
  const auto folder = fmt::format("/proc/{}/task", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> threads{opendir(folder.c_str()), closedir};
  if (!threads) return false;
  while (const auto* thread = readdir(threads.get())) {
    if (thread->d_name[0] == '.') continue;
    const auto state = read_stat(fmt::format("{}/{}/stat", folder, thread->d_name));
    if (state && (state->flags & exiting_flag) == 0) return false;
  }
  return true;
}

file_descriptor pidfd_of(std::int32_t pid) {
  return file_descriptor{static_cast<int>(syscall(SYS_pidfd_open, pid, 0))};
}

std::uint64_t own_namespace() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

}  // namespace

process_life process_life::own() { return of_child(static_cast<std::int32_t>(getpid())); }

process_life process_life::of_child(std::int32_t pid) {
  return {pid, birth_of(pid), own_namespace()};
}

bool process_life::visible() const { return numbers == own_namespace(); }

file_descriptor process_life::watch() const {
  if (!visible()) return file_descriptor{};
  auto file = pidfd_of(pid);
  // Opened first and compared then: another process may have got the number `pid` meanwhile.
  if (file.get() >= 0 && birth != 0 && birth_of(pid) != birth) return file_descriptor{};
  return file;
}

// The first thread alone proves nothing: it may end before the others do.
bool process_life::exiting() const {
  if (pid == getpid() || !visible()) return false;
  const auto state = read_stat(fmt::format("/proc/{}/stat", pid));
  return state && state->birth == birth && (state->flags & exiting_flag) != 0 &&
         all_threads_exit(pid);
}

std::optional<int> process_life::exiting_with() const {
  if (!exiting()) return std::nullopt;
  const auto state = read_stat(fmt::format("/proc/{}/stat", pid));
  if (!state || state->birth != birth || state->status == 0) return std::nullopt;
  return state->status;
}

// A process without a free descriptor opens neither file, and then nothing is certain.
bool process_life::over() const {
  if (pid == getpid() || !visible()) return false;
  const auto file = pidfd_of(pid);
  if (file.get() < 0 && errno == ESRCH) return true;
  const auto now = birth_of(pid);
  if (now != 0 && birth != 0 && now != birth) return true;
  pollfd ended{file.get(), POLLIN, 0};
  return (file.get() >= 0 && poll(&ended, 1, 0) == 1) || exiting();
}

}  // namespace troupe
