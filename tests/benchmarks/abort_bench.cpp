// How long an abort takes to reach a rank that waits in an all_reduce of 16 MiB, in another thread
// or process: until it is told, and until its memory is its own again. Usage: abort_bench [inproc |
// shm | tcp | hier] [TIMES] [RANKS]
#include "backends/inproc/inproc.hpp"
#include "backends/processes/meetings.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
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

// Shared by the processes. Whoever waits for the others sleeps: a rank that watched them would take
// a core from those whose wake-up is measured.
struct board {
  sem_t waiting;
  sem_t over;
  sem_t next;
  std::array<double, times_max> aborted;
  std::array<std::array<double, times_max>, ranks_max> told;
  std::array<std::array<double, times_max>, ranks_max> free;
};

void take(sem_t& from, std::int32_t times) {
  while (times > 0)
    if (sem_wait(&from) == 0) --times;
}

void be_rank(communicator_backend& backend, board& on, std::int32_t rank, std::int32_t ranks,
             std::size_t times) {
  constexpr std::size_t count = std::size_t{4} << 20;
  const auto r = static_cast<std::size_t>(rank);
  for (std::size_t i = 0; i < times; ++i) {
    const auto c = backend.open({.generation = generation_id{i + 1}, .rank = rank, .world = ranks});
    const auto memory = c->allocate(count * sizeof(float));
    c->barrier("all here")->wait();
    if (rank == 0) {  // does not take part
      take(on.waiting, ranks - 1);
      on.aborted[i] = now();
      c->abort("enough");
      take(on.over, ranks - 1);  // what closing costs is not asked here
      for (std::int32_t other = 1; other < ranks; ++other) sem_post(&on.next);
      continue;
    }
    const auto work = c->all_reduce({memory.get(), count, dtype::f32}, reduction::sum);
    sem_post(&on.waiting);
    try {
      work->wait();
    } catch (const generation_closed&) {
      on.told[r][i] = now();
    }
    while (!c->quiescent()) sched_yield();
    on.free[r][i] = now();
    sem_post(&on.over);
    take(on.next, 1);
  }
}

void show(const char* what, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  fmt::print("{:>10}: median {:.1f} us, 99 % {:.1f} us, worst {:.1f} us\n", what,
             1e6 * seconds[seconds.size() / 2], 1e6 * seconds[seconds.size() * 99 / 100],
             1e6 * seconds.back());
}

std::shared_ptr<communicator_backend> join(const meeting_kind& kind, const meeting& place) {
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
  auto& on = *static_cast<board*>(
      mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  sem_init(&on.waiting, 1, 0);
  sem_init(&on.over, 1, 0);
  sem_init(&on.next, 1, 0);
  std::vector<std::thread> threads;
  std::vector<pid_t> children;
  if (by == "inproc") {
    inproc_backend backend;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { be_rank(backend, on, rank, ranks, times); });
    for (auto& one : threads) one.join();
  } else {
    for (const auto& kind : process_meetings()) {
      if (kind->name() != by) continue;
      const auto place = kind->arrange({});
      for (int rank = 0; rank < ranks; ++rank) {
        children.push_back(fork());
        if (children.back() != 0) continue;
        be_rank(*join(*kind, *place), on, rank, ranks, times);
        _exit(0);
      }
      for (const auto child : children) waitpid(child, nullptr, 0);
    }
    if (children.empty()) return 2;
  }
  std::vector<double> told;
  std::vector<double> free;
  for (std::size_t i = 0; i < times; ++i)
    for (int rank = 1; rank < ranks; ++rank) {
      told.push_back(on.told[static_cast<std::size_t>(rank)][i] - on.aborted[i]);
      free.push_back(on.free[static_cast<std::size_t>(rank)][i] - on.aborted[i]);
    }
  fmt::print("{}, {} ranks, {} aborts of an all_reduce of 16 MiB\n", by, ranks, times);
  show("told", told);
  show("quiescent", free);
}
