// Goal: a later_call calls, moves and destroys its function, whether the function is stored inline
// or on the heap.
#include "backends/simulated/later.hpp"

#include <array>
#include <memory>
#include <utility>

#include "tests/support/catch.hpp"

using troupe::later_call;

namespace {

// Counts its live instances.
struct counted {
  explicit counted(int& of) : alive(&of) { ++*alive; }
  counted(counted&& other) noexcept : alive(other.alive) { ++*alive; }
  ~counted() { --*alive; }
  int* alive;
};

template <std::size_t Bytes>
void check_life() {
  int alive = 0;
  int called = 0;
  {
    later_call call{[c = counted{alive}, &called, filler = std::array<char, Bytes>{}] {
      called += 1 + filler.front();
    }};
    CHECK(alive == 1);
    later_call moved{std::move(call)};
    CHECK_FALSE(call);
    CHECK(alive == 1);
    moved();
    CHECK(called == 1);
    later_call other{[c = counted{alive}, &called] { called += 10; }};
    CHECK(alive == 2);
    other = std::move(moved);  // destroys what `other` held
    CHECK(alive == 1);
    other();
    CHECK(called == 2);
    other = nullptr;
    CHECK_FALSE(other);
    CHECK(alive == 0);
    other = later_call{[c = counted{alive}] {}};
    CHECK(alive == 1);
  }
  CHECK(alive == 0);
}

}  // namespace

TEST_CASE("functions stored inline or on the heap are destroyed exactly once", "[later]") {
  check_life<1>();
  check_life<later_call::room>();
}

TEST_CASE("a later_call may hold a move-only function and keeps its changed state", "[later]") {
  int sum = 0;
  later_call call{[n = std::make_unique<int>(1), &sum]() mutable { sum += (*n)++; }};
  call();
  auto moved = std::move(call);
  moved();
  CHECK(sum == 3);
  CHECK_FALSE(later_call{});
}
