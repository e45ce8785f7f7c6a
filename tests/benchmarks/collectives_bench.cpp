// all_reduce(sum, float32) of thread ranks; for two of them beside the bare loop that reads two
// arrays, adds and writes both, run by two threads without any synchronisation inside. Interleaved
// rounds, medians. Usage: collectives_bench [ROUNDS] [RANKS] [inproc|tcp]. A busy machine spoils the
// small sizes.
#include "backends/inproc/inproc.hpp"
#include "backends/tcp/tcp.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
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

// What an in-place sum of two ranks has to do at least.
[[gnu::target_clones("avx2", "default")]] void bare_loop(float* a, float* b, std::size_t from,
                                                         std::size_t to) {
#pragma GCC ivdep
  for (std::size_t i = from; i < to; ++i) a[i] = b[i] = a[i] + b[i];
}

struct figures {
  std::vector<double> collective;
  std::vector<double> bare;
};

// One per rank: processes have none in common.
std::vector<std::shared_ptr<troupe::communicator_backend>> backends(const std::string& name,
                                                                    int ranks) {
  std::vector<std::shared_ptr<troupe::communicator_backend>> all;
  if (name == "inproc") {
    all.assign(ranks, std::make_shared<troupe::inproc_backend>());
  } else if (name == "tcp") {
    const auto book = std::make_shared<troupe::tcp_address_book>();
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back(std::make_shared<troupe::tcp_backend>(troupe::tcp_options{.rendezvous = book}));
  } else {
    throw std::invalid_argument("no communicator " + name);
  }
  return all;
}

// Ranks meet at `start` before each batch; the time of a batch is the slower rank's.
figures measure(const std::string& communicator, std::size_t bytes, int rounds, int ranks) {
  const auto count = bytes / sizeof(float);
  const int calls = static_cast<int>(std::clamp<std::size_t>((512u << 20) / bytes, 5, 500));
  const auto backend = backends(communicator, ranks);
  std::vector<std::shared_ptr<void>> memory(ranks);
  std::vector<std::vector<double>> batch(ranks, std::vector<double>(2 * rounds));
  std::barrier start{ranks};
  const auto rank_body = [&](int rank) {
    auto world = backend[rank]->open({.rank = rank, .world = ranks});
    memory[rank] = world->allocate(bytes);
    auto* mine = static_cast<float*>(memory[rank].get());
    std::fill(mine, mine + count, 0.0f);
    start.arrive_and_wait();
    auto* first = static_cast<float*>(memory[0].get());
    auto* second = static_cast<float*>(memory[1 % ranks].get());
    const auto half = count / 2;
    for (int round = 0; round < 2 * rounds; ++round) {
      if (round % 2 != 0 && ranks != 2) continue;
      start.arrive_and_wait();
      const auto begin = now();
      for (int call = 0; call < calls; ++call) {
        if (round % 2 == 0)
          world->all_reduce({mine, count, troupe::dtype::f32}, troupe::reduction::sum)->wait();
        else
          bare_loop(first, second, rank * half, (rank + 1) * half);
      }
      batch[rank][round] = (now() - begin) / calls;
    }
    start.arrive_and_wait();
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < ranks; ++rank) others.emplace_back(rank_body, rank);
  rank_body(0);
  for (auto& other : others) other.join();
  figures result;
  for (int round = 0; round < 2 * rounds; ++round) {
    double slowest = 0;
    for (const auto& rank : batch) slowest = std::max(slowest, rank[round]);
    (round % 2 == 0 ? result.collective : result.bare).push_back(slowest);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(5, std::atoi(argv[1])) : 7;
  const int ranks = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2;
  const std::string communicator = argc > 3 ? argv[3] : "inproc";
  fmt::print("all_reduce(sum, float32), {}, {} ranks; {} rounds, 20 times as many to 1 MiB\n",
             communicator, ranks, rounds);
  fmt::print("{:>10} {:>12} {:>12} {:>8} {:>12} {:>12} {:>8} {:>10}\n", "bytes", "median s",
             "bare loop", "ratio", "best s", "bare loop", "ratio", "best GB/s");
  for (const std::size_t bytes : {1u << 10, 64u << 10, 1u << 20, 16u << 20, 100u << 20}) {
    const auto measured = measure(communicator, bytes, bytes <= 1u << 20 ? 20 * rounds : rounds, ranks);
    const auto collective = of(measured.collective);
    const auto bare = of(measured.bare);
    fmt::print("{:>10} {:>12.3e} {:>12.3e} {:>8.2f} {:>12.3e} {:>12.3e} {:>8.2f} {:>10.2f}\n",
               bytes, collective.median, bare.median, bare.median / collective.median,
               collective.best, bare.best, bare.best / collective.best,
               static_cast<double>(bytes) / collective.best * 1e-9);
  }
}
