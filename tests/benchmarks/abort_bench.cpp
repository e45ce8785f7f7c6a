// Measures how long an abort takes to reach a rank in an all_reduce of 16 MiB, in another thread or
// process: until the rank's wait ends, and until its memory may be reused (quiescence).
// `waiting`: rank 0 takes no part and aborts when all others wait.
// `middle`: all ranks take part, and another thread of rank 0's process aborts at a random moment
// of the reduction; rank 0 is measured too.
// Usage: abort_bench [inproc | shm | tcp | hier] [TIMES] [RANKS] [waiting | middle]
#include "backends/inproc/inproc.hpp"
#include "backends/processes/rendezvous_kinds.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace troupe;

constexpr std::size_t ranks_max = 64;
constexpr std::size_t times_max = 10000;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Shared by the processes. A rank that waits for the others sleeps: if it polled, it would take a
// core from the ranks whose wake-up is measured.
struct shared_page {
  sem_t waiting;
  sem_t over;
  sem_t next;
  // middle: operations that completed before the abort arrived
  std::atomic<std::uint64_t> completed;
  std::array<double, times_max> aborted;
  std::array<std::array<double, times_max>, ranks_max> notified;
  std::array<std::array<double, times_max>, ranks_max> free;
};

void take(sem_t& from, std::int32_t times) {
  while (times > 0)
    if (sem_wait(&from) == 0) --times;
}

void be_rank(communicator_backend& backend, shared_page& on, std::int32_t rank, std::int32_t ranks,
             std::size_t times) {
  constexpr std::size_t count = std::size_t{4} << 20;
  const auto r = static_cast<std::size_t>(rank);
  for (std::size_t i = 0; i < times; ++i) {
    const auto c = backend.open({.generation = generation_id{i + 1}, .rank = rank, .world = ranks});
    const auto memory = c->allocate(count * sizeof(float));
    c->barrier("all here")->wait();
    if (rank == 0) {  // takes no part
      take(on.waiting, ranks - 1);
      on.aborted[i] = now();
      c->abort("enough");
      take(on.over, ranks - 1);  // the time of closing is not measured
      for (std::int32_t other = 1; other < ranks; ++other) sem_post(&on.next);
      continue;
    }
    const auto work = c->all_reduce({memory.get(), count, dtype::f32}, reduction::sum);
    sem_post(&on.waiting);
    try {
      work->wait();
    } catch (const generation_closed&) {
      on.notified[r][i] = now();
    }
    while (!c->quiescent()) sched_yield();
    on.free[r][i] = now();
    sem_post(&on.over);
    take(on.next, 1);
  }
}

// While the others reduce: aborts at a random moment within `usual` seconds after `begun` is
// signalled.
void abort_in_the_middle(communicator& c, const std::atomic<double>& begun, double usual,
                         double share, double& at) {
  begun.wait(0);
  const auto left = std::max(0.0, begun.load() + usual * share - now());
  const timespec rest{.tv_sec = 0, .tv_nsec = static_cast<long>(1e9 * std::min(left, 0.5))};
  ppoll(nullptr, 0, &rest, nullptr);
  at = now();
  c.abort("enough");
}

void be_rank_in_the_middle(communicator_backend& backend, shared_page& on, std::int32_t rank,
                           std::int32_t ranks, std::size_t times) {
  constexpr std::size_t count = std::size_t{4} << 20;
  const auto r = static_cast<std::size_t>(rank);
  std::mt19937 draw{20261122};
  std::uniform_real_distribution share{0.1, 0.8};
  for (std::size_t i = 0; i < times; ++i) {
    const auto c = backend.open({.generation = generation_id{i + 1}, .rank = rank, .world = ranks});
    const auto memory = c->allocate(count * sizeof(float));
    auto usual = std::numeric_limits<double>::max();
    for (int look = 0; look < 4; ++look) {
      c->barrier("all here")->wait();
      const auto begun = now();
      c->all_reduce({memory.get(), count, dtype::f32}, reduction::sum)->wait();
      usual = std::min(usual, now() - begun);
    }
    std::atomic<double> begun{0};
    std::thread stranger;
    if (rank == 0)
      stranger = std::thread{
          [&, part = share(draw)] { abort_in_the_middle(*c, begun, usual, part, on.aborted[i]); }};
    c->barrier("all here")->wait();
    begun = now();
    begun.notify_one();
    try {
      c->all_reduce({memory.get(), count, dtype::f32}, reduction::sum)->wait();
      ++on.completed;
    } catch (const generation_closed&) {
      on.notified[r][i] = now();
    }
    if (stranger.joinable()) stranger.join();
    while (c->aborted() && !c->quiescent()) sched_yield();
    on.free[r][i] = now();
    if (rank == 0) {
      take(on.over, ranks - 1);
      for (std::int32_t other = 1; other < ranks; ++other) sem_post(&on.next);
    } else {
      sem_post(&on.over);
      take(on.next, 1);
    }
  }
}

void show(const char* what, std::vector<double> seconds) {
  if (seconds.empty()) return;
  std::sort(seconds.begin(), seconds.end());
  fmt::print("{:>10}: median {:.1f} us, 99 % {:.1f} us, worst {:.1f} us\n", what,
             1e6 * seconds[seconds.size() / 2], 1e6 * seconds[seconds.size() * 99 / 100],
             1e6 * seconds.back());
}

std::shared_ptr<communicator_backend> join(const rendezvous_kind& kind, const rendezvous& place) {
  std::vector<int> own;
  for (const int one : place.descriptors()) own.push_back(fcntl(one, F_DUPFD_CLOEXEC, 0));
  return kind.join(place.address(), own);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string by = count > 1 ? arguments[1] : "inproc";
  const auto times =
      std::clamp<std::size_t>(count > 2 ? std::atoi(arguments[2]) : 200, 1, times_max);
  const auto ranks = std::clamp(count > 3 ? std::atoi(arguments[3]) : 2, 2, int{ranks_max});
  const bool middle = count > 4 && std::string{arguments[4]} == "middle";
  const auto act = middle ? be_rank_in_the_middle : be_rank;
  auto& on = *static_cast<shared_page*>(mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE,
                                             MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  sem_init(&on.waiting, 1, 0);
  sem_init(&on.over, 1, 0);
  sem_init(&on.next, 1, 0);
  std::vector<std::thread> threads;
  std::vector<pid_t> children;
  if (by == "inproc") {
    inproc_backend backend;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { act(backend, on, rank, ranks, times); });
    for (auto& one : threads) one.join();
  } else {
    for (const auto& kind : process_rendezvous_kinds()) {
      if (kind->name() != by) continue;
      const auto place = kind->arrange({});
      for (int rank = 0; rank < ranks; ++rank) {
        children.push_back(fork());
        if (children.back() != 0) continue;
        act(*join(*kind, *place), on, rank, ranks, times);
        _exit(0);
      }
      for (const auto child : children) waitpid(child, nullptr, 0);
    }
    if (children.empty()) return 2;
  }
  std::vector<double> notified;
  std::vector<double> free;
  for (std::size_t i = 0; i < times; ++i)
    for (int rank = middle ? 0 : 1; rank < ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (on.notified[r][i] == 0) continue;
      notified.push_back(on.notified[r][i] - on.aborted[i]);
      free.push_back(on.free[r][i] - on.aborted[i]);
    }
  fmt::print("{}, {} ranks, {} aborts {} an all_reduce of 16 MiB\n", by, ranks, times,
             middle ? "in the middle of" : "of");
  if (on.completed != 0) fmt::print("{:>10}: {}\n", "complete", on.completed.load());
  show("notified", notified);
  show("quiescent", free);
}
