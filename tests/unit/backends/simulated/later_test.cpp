// Goal: a later_call is called, moved and ended like what it holds, whether that lies in it or not.
#include "backends/simulated/later.hpp"

#include <array>
#include <memory>
#include <utility>

#include "tests/support/catch.hpp"

using troupe::later_call;

namespace {

// Sees how many of it there are.
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
    other = std::move(moved);  // what it held ends
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

TEST_CASE("a small call lies inside, a large one outside", "[later]") {
  check_life<1>();
  check_life<later_call::room>();
}

TEST_CASE("a call may hold what cannot be copied, and keep what it has changed", "[later]") {
  int sum = 0;
  later_call call{[n = std::make_unique<int>(1), &sum]() mutable { sum += (*n)++; }};
  call();
  auto moved = std::move(call);
  moved();
  CHECK(sum == 3);
  CHECK_FALSE(later_call{});
}
