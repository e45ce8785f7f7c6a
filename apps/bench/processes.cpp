#include "apps/bench/processes.hpp"

#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::program {

namespace {

// Longer than any operation of a benchmark takes: a rank that hangs is an error, not a wait.
constexpr std::chrono::seconds deadline{60};

class copies {
public:
  copies() = default;
  copies(const copies&) = delete;
  copies& operator=(const copies&) = delete;
  ~copies() {
    for (const auto& one : living_) {
      ::kill(one.pid, SIGKILL);
      ::waitpid(one.pid, nullptr, 0);
    }
  }

  void add(pid_t pid, std::int32_t rank) { living_.push_back({pid, rank}); }

  // Waits for all processes; returns the lowest rank that failed, or -1.
  std::int32_t reap() {
    std::int32_t failed = -1;
    for (const auto& one : std::exchange(living_, {})) {
      int status = 0;
      while (::waitpid(one.pid, &status, 0) < 0 && errno == EINTR) {
      }
      if (failed < 0 && status != 0) failed = one.rank;
    }
    return failed;
  }

private:
  struct copy {
    pid_t pid;
    std::int32_t rank;
  };
  std::vector<copy> living_;
};

void take_part(const rendezvous_kind& kind, const rendezvous& place, const group_description& who,
               const std::function<void(communicator&)>& body) {
  std::vector<int> own;
  for (const int one : place.descriptors()) {
    own.push_back(::fcntl(one, F_DUPFD_CLOEXEC, 0));
    if (own.back() < 0)
      throw user_error(errc::device, fmt::format("no descriptor: {}", std::strerror(errno)));
  }
  const auto backend = kind.join(place.address(), own);
  const auto group = backend->open(who);
  body(*group);
  group->barrier("the end")->wait();
}

// Never returns: the code after this call belongs to rank 0.
[[noreturn]] void be_copy(pid_t of, const std::function<void()>& rank) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != of) ::_exit(1);
  std::string why;
  try {
    rank();
  } catch (const generation_closed&) {
    ::_exit(1);  // follows from another rank's failure; that rank reports the cause
  } catch (const std::exception& error) {
    why = fmt::format("troupe: a rank of the benchmark: {}\n", error.what());
  }
  [[maybe_unused]] const auto said = ::write(STDERR_FILENO, why.data(), why.size());
  ::_exit(why.empty() ? 0 : 1);
}

// A thread that was joined stays in the kernel's table for a moment.
bool alone() {
  for (int look = 0; look < 100'000; ++look) {
    const std::filesystem::directory_iterator threads{"/proc/self/task"};
    if (std::distance(begin(threads), end(threads)) == 1) return true;
    ::sched_yield();
  }
  return false;
}

}  // namespace

void on_processes(const rendezvous_kind& kind, const rendezvous_options& how, std::int32_t ranks,
                  const std::function<void(communicator&)>& body) {
  if (!alone()) throw internal_error("a process with threads cannot be copied for a rank");
  const auto place = kind.arrange(how);
  const auto run = [&](std::int32_t rank) {
    take_part(kind, *place,
              {.generation = generation_id{1}, .rank = rank, .world = ranks, .deadline = deadline},
              body);
  };
  const auto self = ::getpid();
  copies others;
  for (std::int32_t rank = 1; rank < ranks; ++rank) {
    const auto pid = ::fork();
    if (pid < 0)
      throw user_error(errc::device,
                       fmt::format("no process for rank {}: {}", rank, std::strerror(errno)));
    if (pid == 0) be_copy(self, [&] { run(rank); });
    others.add(pid, rank);
  }
  std::string why;
  try {
    run(0);
  } catch (const generation_closed& closed) {
    why = closed.what();
  }
  const auto failed = others.reap();
  if (failed >= 0)
    throw user_error(errc::job_failed,
                     fmt::format("rank {} of the benchmark failed: try fewer ranks or smaller "
                                 "sizes",
                                 failed));
  if (!why.empty()) throw user_error(errc::job_failed, why);
}

}  // namespace troupe::program
