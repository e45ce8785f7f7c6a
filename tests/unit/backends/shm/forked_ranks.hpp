// Ranks of the shm communicator in processes that a test forks.
#pragma once

#include "backends/local/file_descriptor.hpp"
#include "backends/shm/shm.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

namespace troupe::testing {

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error("expected: " + what);
}

/// One process for every rank, forked from a process without other threads.
class rank_processes {
public:
  using body = std::function<void(std::int32_t rank)>;

  rank_processes(std::int32_t world, const body& what) {
    const auto parent = getpid();
    for (std::int32_t rank = 0; rank < world; ++rank) {
      pids_.push_back(fork());
      REQUIRE(pids_.back() >= 0);
      if (pids_.back() != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(300);  // a rank that waits forever fails instead of hanging
      if (getppid() != parent) _exit(3);
      try {
        what(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        _exit(1);
      }
      _exit(0);
    }
  }
  ~rank_processes() {
    for (const auto pid : pids_)
      if (pid > 0 && kill(pid, SIGKILL) == 0) waitpid(pid, nullptr, 0);
  }
  rank_processes(const rank_processes&) = delete;
  rank_processes& operator=(const rank_processes&) = delete;

  pid_t pid(std::int32_t rank) const { return pids_.at(static_cast<std::size_t>(rank)); }
  /// Waits until `done` holds. Fails if the rank ends before.
  void await(std::int32_t rank, const std::function<bool()>& done) const {
    const file_descriptor life{static_cast<int>(syscall(SYS_pidfd_open, pid(rank), 0))};
    pollfd over{life.get(), POLLIN, 0};
    while (!done() && poll(&over, 1, 1) == 0) {
    }
    REQUIRE(done());
  }
  /// Waits for the rank's exit status: 0 on success, -9 if it was killed.
  int end(std::int32_t rank) {
    int status = 0;
    auto& pid = pids_.at(static_cast<std::size_t>(rank));
    REQUIRE(waitpid(pid, &status, 0) == pid);
    pid = -1;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

private:
  std::vector<pid_t> pids_;
};

// Small sizes, so that the cases pass where the address space of a process is limited.
inline constexpr shm_sizes small_sizes{.registered_bytes = std::size_t{64} << 20};
inline shm_rendezvous small_rendezvous() { return shm_rendezvous::create(small_sizes); }

inline std::shared_ptr<communicator> open(shm_backend& backend, std::int32_t rank,
                                          std::int32_t world, std::uint64_t generation = 1,
                                          std::chrono::milliseconds deadline = {}) {
  return backend.open({.job = job_id{1},
                       .generation = generation_id{generation},
                       .rank = rank,
                       .world = world,
                       .deadline = deadline});
}

/// The memory that the control segment's file takes.
inline std::size_t file_bytes(const shm_rendezvous& rendezvous) {
  struct stat about {};
  expect(fstat(rendezvous.descriptor(), &about) == 0, "a file");
  return static_cast<std::size_t>(about.st_blocks) * 512;
}

template <class E, class F>
std::string text_of(F&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  throw std::logic_error("expected an exception");
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace troupe::testing
