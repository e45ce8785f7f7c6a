// Measures how ranks wait for each other: ranks in threads, with and without foreign processes on
// every core, under the policy in use and under both of its extremes. Prints a table for
// docs/performance.md.
// Usage: waiting_bench [inproc | shm] [ROUNDS]
#include "backends/collective/waiting.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/shm/shm.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

double clock_of(clockid_t which) {
  timespec now{};
  clock_gettime(which, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double wall() { return clock_of(CLOCK_MONOTONIC); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Processes that compute without end, in a session of their own, because the kernel first shares
// cores fairly between sessions.
class foreign_load {
public:
  explicit foreign_load(int processes) {
    for (int i = 0; i < processes; ++i) {
      const auto pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setsid();
        for (volatile unsigned turn = 0;;) turn = turn + 1;
      }
      if (pid > 0) pids_.push_back(pid);
    }
  }
  ~foreign_load() {
    for (const auto pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  foreign_load(const foreign_load&) = delete;
  foreign_load& operator=(const foreign_load&) = delete;

private:
  std::vector<pid_t> pids_;
};

struct policy {
  std::string name;
  int cores;  // the number of cores given to the communicator; 0: it detects them
};

struct figures {
  double seconds;      // of a sum of 1 KiB
  double processor;    // processor time of one rank for it
  double share_burnt;  // share of processor time used while waiting for a rank that computes 2 ms
};

std::unique_ptr<troupe::communicator_backend> make(const std::string& kind, int cores) {
  if (kind == "shm")
    return std::make_unique<troupe::shm_backend>(troupe::shm_rendezvous::create(),
                                                 troupe::shm_options{.cores = cores});
  return std::make_unique<troupe::inproc_backend>(troupe::inproc_options{.cores = cores});
}

void compute(double seconds) {
  const auto until = clock_of(CLOCK_THREAD_CPUTIME_ID) + seconds;
  while (clock_of(CLOCK_THREAD_CPUTIME_ID) < until) {
  }
}

figures measure(const std::string& kind, int cores, int ranks, int rounds) {
  constexpr int sums = 300;
  constexpr int waits = 10;
  constexpr double work = 0.002;
  const auto backend = make(kind, cores);
  std::vector<double> seconds, processor, burnt;
  const auto rank_body = [&](int rank) {
    const auto world = backend->open({.rank = rank, .world = ranks});
    std::vector<float> data(256, 0.0f);
    const auto sum = [&] {
      world->all_reduce({data.data(), data.size(), troupe::dtype::f32}, troupe::reduction::sum)
          ->wait();
    };
    for (int round = 0; round < rounds; ++round) {
      world->barrier("a round")->wait();
      const auto before = wall();
      const auto used_before = clock_of(CLOCK_PROCESS_CPUTIME_ID);
      for (int i = 0; i < sums; ++i) sum();
      if (rank == 0) {
        seconds.push_back((wall() - before) / sums);
        processor.push_back((clock_of(CLOCK_PROCESS_CPUTIME_ID) - used_before) / sums / ranks);
      }
      world->barrier("waits")->wait();
      const auto waited_from = wall();
      const auto own_before = clock_of(CLOCK_THREAD_CPUTIME_ID);
      for (int i = 0; i < waits; ++i) {
        if (rank == 0) compute(work);
        sum();
      }
      if (rank == ranks - 1)
        burnt.push_back((clock_of(CLOCK_THREAD_CPUTIME_ID) - own_before) / (wall() - waited_from));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(rank_body, rank);
  for (auto& one : threads) one.join();
  return {median(seconds), median(processor), ranks == 1 ? 0 : median(burnt)};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "inproc";
  const int rounds = argc > 2 ? std::max(3, std::atoi(argv[2])) : 9;
  const int cores = troupe::allowed_cores();
  const std::vector<policy> policies{{"in use", 0}, {"spins first", 1 << 20}, {"yields first", 1}};
  fmt::print("{}, {} cores\n\n", kind, cores);
  fmt::print("| ranks | foreign | policy | 1 KiB | processor per rank | burnt while waiting |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  for (const int ranks : {1, 2, 4})
    for (const int foreign : {0, cores}) {
      const foreign_load load{foreign};
      for (const auto& one : policies) {
        const auto seen = measure(kind, one.cores, ranks, rounds);
        fmt::print("| {} | {} | {} | {:.2f} us | {:.2f} us | {:.0f} % |\n", ranks, foreign,
                   one.name, 1e6 * seen.seconds, 1e6 * seen.processor, 100 * seen.share_burnt);
        std::fflush(stdout);
      }
    }
}
