// Goal: the primitives of waiting ranks are right: the mutex and the detection of a shared core.
#include "backends/collective/waiting.hpp"

#include <sched.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

std::vector<std::size_t> allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<std::size_t> cores;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

// Pins a thread to `core` and records where it ran. Returns false if the thread cannot be pinned.
bool stand_on(std::size_t core, whereabouts& who) {
  bool there = false;
  std::thread{[&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    there = sched_setaffinity(0, sizeof set, &set) == 0;
    who.here();
  }}.join();
  return there;
}

TEST_CASE("a brief_mutex excludes other threads however long it is held", "[waiting]") {
  brief_mutex mutex;
  int inside = 0;
  int most_inside = 0;
  int entered = 0;
  const auto enter = [&](int times, int yields) {
    for (int i = 0; i < times; ++i) {
      const std::lock_guard hold{mutex};
      most_inside = std::max(most_inside, ++inside);
      ++entered;
      for (int y = 0; y < yields; ++y) sched_yield();  // waiting threads stop spinning and sleep
      --inside;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(enter, 20000, 0);
  for (int i = 0; i < 2; ++i) threads.emplace_back(enter, 20, 1000);
  for (auto& one : threads) one.join();
  CHECK(most_inside == 1);
  CHECK(entered == 3 * 20000 + 2 * 20);
}

TEST_CASE("two ranks that last ran on the same core detect it", "[waiting]") {
  whereabouts first, second;
  CHECK_FALSE(first.same_core(second));  // no rank has reported its core yet
  const auto cores = allowed();
  if (!stand_on(cores.front(), first)) {
    WARN("SKIPPED: threads cannot be pinned to a core here");
    return;
  }
  CHECK_FALSE(first.same_core(second));
  stand_on(cores.front(), second);
  CHECK(first.same_core(second));
  CHECK(second.same_core(first));
  if (cores.size() == 1) return;
  stand_on(cores.back(), second);
  CHECK_FALSE(first.same_core(second));
}

}  // namespace
}  // namespace troupe
