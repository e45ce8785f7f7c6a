#include "backends/processes/spawning.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "backends/processes/arguments.hpp"

extern char** environ;

namespace troupe {

namespace {

std::string own_path() {
  std::array<char, 4096> path{};
  const auto size = ::readlink("/proc/self/exe", path.data(), path.size());
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : "troupe";
}

}  // namespace

spawn_plan::spawn_plan(const std::vector<open_file>& inherited) {
  ::posix_spawn_file_actions_init(&files_);
  ::posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  int to = link_descriptor;
  for (const auto& one : inherited) ::posix_spawn_file_actions_adddup2(&files_, one.get(), to++);
  ::posix_spawn_file_actions_addclosefrom_np(&files_, to);
  ::posix_spawnattr_init(&attributes_);
  sigset_t until_ready;
  sigemptyset(&until_ready);
  sigaddset(&until_ready, SIGINT);
  sigaddset(&until_ready, SIGTERM);
  ::posix_spawnattr_setsigmask(&attributes_, &until_ready);
  ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK);
}

spawn_plan::~spawn_plan() {
  ::posix_spawn_file_actions_destroy(&files_);
  ::posix_spawnattr_destroy(&attributes_);
}

pid_t spawn_plan::start(std::vector<std::string> words, int& error) const {
  words.insert(words.begin(), own_path());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  // Works after the file was replaced or removed, too.
  error = ::posix_spawn(&pid, "/proc/self/exe", &files_, &attributes_, pointers.data(), environ);
  return error == 0 ? pid : 0;
}

process_end end_of(const siginfo_t& info) {
  process_end end;
  if (info.si_code == CLD_EXITED) {
    end.clean = info.si_status == 0;
    end.what.type = "exit";
    end.what.what = fmt::format("its process ended with exit code {}", info.si_status);
    return end;
  }
  const auto* name = ::sigabbrev_np(info.si_status);
  end.what.type = "signal";
  end.what.signal = name ? fmt::format("SIG{}", name) : fmt::format("signal {}", info.si_status);
  end.what.what = fmt::format("its process was ended by {}", end.what.signal);
  return end;
}

process_end reap(int pidfd) {
  siginfo_t info{};
  int done = -1;
  do {
    done = ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED);
  } while (done < 0 && errno == EINTR);
  if (done == 0) return end_of(info);
  process_end end;
  end.what.type = "exit";
  end.what.what = "its process ended; somebody else took its exit code";
  return end;
}

}  // namespace troupe
