// Measures all_reduce(sum, float32). For two ranks it also measures the bare loop: two ranks that
// read two arrays, add and write both, without synchronisation inside. Interleaved rounds, medians.
// Usage: collectives_bench [ROUNDS] [RANKS] [inproc | shm | shm-staged]
// With inproc, ranks are threads and memory is the communicator's. With shm, ranks are processes
// that reduce the communicator's memory in place, or their own memory through slots (shm-staged).
// On a busy machine the figures of small sizes are useless.
#include "backends/inproc/inproc.hpp"
#include "backends/shm/shm.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using seconds = std::chrono::duration<double>;

double now() { return seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct summary {
  double median = 0;
  double best = 0;
};
summary of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front()};
}

// The least work of an in-place sum of two ranks.
[[gnu::target_clones("avx2", "default")]] void bare_loop(float* a, float* b, std::size_t from,
                                                         std::size_t to) {
#pragma GCC ivdep
  for (std::size_t i = from; i < to; ++i) a[i] = b[i] = a[i] + b[i];
}

struct figures {
  std::vector<double> collective;
  std::vector<double> bare;
};

// Memory that threads and forked processes share.
class common_memory {
public:
  explicit common_memory(std::size_t bytes) : bytes_(bytes) {
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) throw std::bad_alloc{};
  }
  ~common_memory() { munmap(at_, bytes_); }
  common_memory(const common_memory&) = delete;
  common_memory& operator=(const common_memory&) = delete;
  template <class T>
  T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(at_) + offset);
  }

private:
  std::size_t bytes_;
  void* at_;
};

struct setting {
  std::string kind;
  std::size_t bytes = 0;
  int rounds = 0;
  int ranks = 0;
  bool staged() const { return kind == "shm-staged"; }
  bool processes() const { return kind != "inproc"; }
};

// Ranks wait for each other at `start` before each batch. The time of a batch is that of the slower
// rank.
struct stage {
  stage(const setting& what)
      : control(sizeof(pthread_barrier_t)),
        times(sizeof(double) * static_cast<std::size_t>(2 * what.rounds * what.ranks)),
        arrays(what.bytes * static_cast<std::size_t>(what.ranks)) {
    pthread_barrierattr_t how;
    pthread_barrierattr_init(&how);
    pthread_barrierattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(start(), &how, static_cast<unsigned>(what.ranks));
    if (what.kind == "inproc")
      backend = std::make_unique<troupe::inproc_backend>();
    else
      backend = std::make_unique<troupe::shm_backend>(troupe::shm_rendezvous::create());
  }
  pthread_barrier_t* start() const { return control.as<pthread_barrier_t>(); }

  common_memory control;
  common_memory times;
  common_memory arrays;
  std::vector<void*> memory;  // inproc: memory of the communicator
  std::unique_ptr<troupe::communicator_backend> backend;
};

void run_rank(const setting& what, stage& on, int rank) {
  const auto count = what.bytes / sizeof(float);
  const int calls = static_cast<int>(std::clamp<std::size_t>((512u << 20) / what.bytes, 5, 500));
  const auto array = [&](int r) {
    auto* given = what.processes() ? nullptr : on.memory[static_cast<std::size_t>(r)];
    return given ? static_cast<float*>(given)
                 : on.arrays.as<float>(static_cast<std::size_t>(r) * what.bytes);
  };
  auto world = on.backend->open({.rank = rank, .world = what.ranks});
  const auto given = world->allocate(what.bytes);
  if (!what.processes()) on.memory[static_cast<std::size_t>(rank)] = given.get();
  auto* mine = what.staged() ? array(rank) : static_cast<float*>(given.get());
  std::fill(mine, mine + count, 0.0f);
  std::fill(array(rank), array(rank) + count, 0.0f);
  pthread_barrier_wait(on.start());
  const auto half = count / 2;
  for (int round = 0; round < 2 * what.rounds; ++round) {
    if (round % 2 != 0 && what.ranks != 2) continue;
    pthread_barrier_wait(on.start());
    const auto begin = now();
    for (int call = 0; call < calls; ++call) {
      if (round % 2 == 0)
        world->all_reduce({mine, count, troupe::dtype::f32}, troupe::reduction::sum)->wait();
      else
        bare_loop(array(0), array(1), static_cast<std::size_t>(rank) * half,
                  static_cast<std::size_t>(rank + 1) * half);
    }
    on.times.as<double>()[rank * 2 * what.rounds + round] = (now() - begin) / calls;
  }
  pthread_barrier_wait(on.start());
}

figures measure(const setting& what) {
  stage on{what};
  on.memory.resize(static_cast<std::size_t>(what.ranks));
  std::vector<pid_t> children;
  for (int rank = 1; what.processes() && rank < what.ranks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) {
      run_rank(what, on, rank);
      _exit(0);
    }
  }
  std::vector<std::thread> others;
  for (int rank = 1; !what.processes() && rank < what.ranks; ++rank)
    others.emplace_back([&, rank] { run_rank(what, on, rank); });
  run_rank(what, on, 0);
  for (auto& other : others) other.join();
  for (const auto child : children) waitpid(child, nullptr, 0);
  figures result;
  for (int round = 0; round < 2 * what.rounds; ++round) {
    double slowest = 0;
    for (int rank = 0; rank < what.ranks; ++rank)
      slowest = std::max(slowest, on.times.as<double>()[rank * 2 * what.rounds + round]);
    (round % 2 == 0 ? result.collective : result.bare).push_back(slowest);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(5, std::atoi(argv[1])) : 7;
  const int ranks = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2;
  const std::string kind = argc > 3 ? argv[3] : "inproc";
  fmt::print("all_reduce(sum, float32), {}, {} ranks; {} rounds, 20 times as many to 1 MiB\n", kind,
             ranks, rounds);
  fmt::print("{:>10} {:>12} {:>12} {:>8} {:>12} {:>12} {:>8} {:>10}\n", "bytes", "median s",
             "bare loop", "ratio", "best s", "bare loop", "ratio", "best GB/s");
  for (const std::size_t bytes : {1u << 10, 64u << 10, 1u << 20, 16u << 20, 100u << 20}) {
    const auto measured = measure({kind, bytes, bytes <= 1u << 20 ? 20 * rounds : rounds, ranks});
    const auto collective = of(measured.collective);
    const auto bare = of(measured.bare);
    fmt::print("{:>10} {:>12.3e} {:>12.3e} {:>8.2f} {:>12.3e} {:>12.3e} {:>8.2f} {:>10.2f}\n",
               bytes, collective.median, bare.median, bare.median / collective.median,
               collective.best, bare.best, bare.best / collective.best,
               static_cast<double>(bytes) / collective.best * 1e-9);
    std::fflush(stdout);
  }
}
