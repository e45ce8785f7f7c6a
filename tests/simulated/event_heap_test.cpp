// Goal: the heap returns events in order of time, and equal times in order of insertion.
#include "apps/testing/event_heap.hpp"

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe::testing;

TEST_CASE("events are returned by time, equal times in order of insertion", "[simulated][heap]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 draw{seed};
    event_heap heap;
    std::multimap<std::int64_t, std::uint32_t> plain;  // equal keys stay in order of insertion
    CAPTURE(seed);
    const auto pushes = 1 + draw() % 6;  // of seven: some heaps stay small, some grow
    const auto times = seed % 2 == 0 ? 20 : 20'000;
    std::int64_t now = 0;
    std::vector<std::uint32_t> free;  // slots are reused, as by the simulation
    std::uint32_t slots = 0;
    for (int i = 0; i < 1500; ++i) {
      if (plain.empty() || draw() % 7 < pushes) {
        if (free.empty()) free.push_back(slots++);
        std::swap(free[draw() % free.size()], free.back());
        const auto at = now + static_cast<std::int64_t>(draw() % times);
        heap.push(at, free.back());
        plain.emplace(at, free.back());
        free.pop_back();
        continue;
      }
      const auto next = heap.pop();
      now = next.at;
      REQUIRE(now == plain.begin()->first);
      REQUIRE(next.slot == plain.begin()->second);
      free.push_back(next.slot);
      plain.erase(plain.begin());
    }
    for (; !plain.empty(); plain.erase(plain.begin()))
      REQUIRE(heap.pop().slot == plain.begin()->second);
    CHECK(heap.empty());
  }
}
