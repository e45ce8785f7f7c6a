#include "backends/processes/spawning.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
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

// The data that a child reads between vfork and exec, while it shares its parent's memory.
struct child_plan {
  const int* inherited;
  int count;
  char* const* words;
  pid_t parent;
  int descriptor_limit;
  volatile int error = 0;
};

// For kernels without close_range: larger descriptor numbers are not closed.
int descriptor_limit() {
  constexpr rlim_t most = 1 << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return static_cast<int>(most);
  return static_cast<int>(std::min(limit.rlim_cur, most));
}

void close_from(int first, int limit) {
  if (::close_range(static_cast<unsigned>(first), ~0U, 0) == 0) return;
  for (int one = first; one < limit; ++one) ::close(one);
}

// A caught signal ends the child until the program begins: handlers are the parent's.
void reset_signals() {
  struct sigaction now {};
  for (int one = 1; one < NSIG; ++one) {
    if (::sigaction(one, nullptr, &now) != 0) continue;
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) continue;
    now = {};
    now.sa_handler = SIG_DFL;
    ::sigaction(one, &now, nullptr);
  }
  sigset_t until_ready;
  sigemptyset(&until_ready);
  sigaddset(&until_ready, SIGINT);
  sigaddset(&until_ready, SIGTERM);
  sigaddset(&until_ready, SIGHUP);
  ::sigprocmask(SIG_SETMASK, &until_ready, nullptr);
}

bool take_descriptors(const child_plan& plan) {
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || (nothing != STDIN_FILENO && ::dup2(nothing, STDIN_FILENO) < 0)) return false;
  for (int i = 0; i < plan.count; ++i) {
    const int from = plan.inherited[i];
    const int to = link_descriptor + i;
    // dup2 of a descriptor to itself would leave it closed on exec.
    if ((from == to ? ::fcntl(to, F_SETFD, 0) : ::dup2(from, to)) < 0) return false;
  }
  close_from(link_descriptor + plan.count, plan.descriptor_limit);
  return true;
}

// Makes system calls only.
[[noreturn]] void become(child_plan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(1);  // the parent died before prctl
  if (take_descriptors(plan)) {
    reset_signals();
    // Also works after the file was replaced or removed.
    ::execve("/proc/self/exe", plan.words, environ);
  }
  plan.error = errno;
  ::_exit(1);
}

// A fork would copy the page tables of a program with a large model, and its threads would then
// fault page by page. The frame of this function stays until the child has left it.
[[gnu::noinline]] pid_t fork_into(child_plan& plan) {
  const auto pid = ::vfork();
  if (pid == 0) become(plan);
  if (pid < 0) plan.error = errno;
  return pid;
}

}  // namespace

pid_t start_child(const std::vector<file_descriptor>& inherited, std::vector<std::string> words,
                  int& error) {
  words.insert(words.begin(), own_path());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  std::vector<int> numbers;
  for (const auto& one : inherited) numbers.push_back(one.get());
  child_plan plan{numbers.data(), static_cast<int>(numbers.size()), pointers.data(), ::getpid(),
                  descriptor_limit()};
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler is to run in the child
  const auto pid = fork_into(plan);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid > 0 && plan.error != 0) ::waitpid(pid, nullptr, 0);
  error = plan.error;
  return error == 0 ? pid : 0;
}

process_end end_of(const siginfo_t& info) {
  process_end end;
  if (info.si_code == CLD_EXITED) {
    end.clean = info.si_status == 0;
    end.what = make_failure(failure_kind::exit,
                            fmt::format("its process ended with exit code {}", info.si_status));
    return end;
  }
  const auto* name = ::sigabbrev_np(info.si_status);
  const auto text = name ? fmt::format("SIG{}", name) : fmt::format("signal {}", info.si_status);
  end.what = make_failure(failure_kind::signal, "its process was ended by " + text);
  end.what.signal = text;
  return end;
}

process_end end_of(int status) {
  siginfo_t info{};
  info.si_code = WIFEXITED(status) ? CLD_EXITED : CLD_KILLED;
  info.si_status = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
  return end_of(info);
}

std::optional<process_end> reap(int pidfd) {
  siginfo_t info{};
  int done = -1;
  do {
    done = ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info,
                    WEXITED | WNOHANG);
  } while (done < 0 && errno == EINTR);
  if (done == 0 && info.si_pid != 0) return end_of(info);
  if (done == 0 || errno == EAGAIN) return std::nullopt;
  // Without an exit code it counts as clean: its end is a failure only while ranks live in it.
  process_end end;
  end.clean = true;
  end.what = make_failure(
      failure_kind::exit,
      fmt::format("its process ended; its exit code cannot be read: {}", std::strerror(errno)));
  return end;
}

}  // namespace troupe
