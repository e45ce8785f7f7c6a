// Goal: what the inproc communicator promises beyond the port.
#include "backends/inproc/inproc.hpp"
#include "tests/support/sanitized.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

std::shared_ptr<communicator> open(inproc_backend& backend, std::int32_t rank, std::int32_t world,
                                   std::uint64_t generation = 1) {
  return backend.open({.generation = generation_id{generation}, .rank = rank, .world = world});
}

TEST_CASE("a group is removed when its last handle is destroyed") {
  inproc_backend backend;
  auto first = open(backend, 0, 2);
  auto second = open(backend, 1, 2);
  auto young = open(backend, 0, 2, 2);
  CHECK(backend.groups() == 2);
  first.reset();
  CHECK(backend.groups() == 2);
  second.reset();
  CHECK(backend.groups() == 1);
  young.reset();
  CHECK(backend.groups() == 0);
  CHECK_NOTHROW(open(backend, 0, 2));  // a new group with the same key
}

TEST_CASE("handles outlive their backend and backends are independent of each other") {
  auto backend = std::make_unique<inproc_backend>();
  inproc_backend other;
  auto first = open(*backend, 0, 2);
  auto second = open(*backend, 1, 2);
  auto stranger = open(other, 1, 2);
  backend.reset();
  const auto work = first->barrier("x");
  CHECK(stranger->barrier("x")->poll().status == work_status::pending);
  CHECK(work->poll().status == work_status::pending);
  second->barrier("x")->wait();
  CHECK(work->poll().status == work_status::ok);
}

TEST_CASE("too many operations in flight are refused and the rank can continue later") {
  inproc_backend backend;
  const auto ahead = open(backend, 0, 2);
  const auto behind = open(backend, 1, 2);
  for (int i = 0; i < 4096; ++i) ahead->barrier("x");
  CHECK_THROWS_WITH(ahead->barrier("x"), Catch::Contains("4096 operations in flight already"));
  for (int i = 0; i < 4096; ++i) behind->barrier("x")->wait();
  const auto work = ahead->barrier("y");
  behind->barrier("y")->wait();
  CHECK(work->poll().status == work_status::ok);
}

TEST_CASE("ranks may be ahead of each other by any number of operations in any pattern") {
  std::mt19937_64 random{GENERATE(range(0u, sanitized ? 4u : 20u))};
  inproc_backend backend;
  struct side {
    std::shared_ptr<communicator> world;
    std::deque<std::vector<float>> memory;
    std::vector<work_ptr> works;
  };
  std::array<side, 2> sides;
  for (const int r : {0, 1}) sides[static_cast<std::size_t>(r)].world = open(backend, r, 2);
  constexpr std::size_t operations = 300;
  const auto most_ahead = 1 + random() % 40;
  const auto count_of = [](std::size_t i) { return i % 7 == 0 ? 20000 : i % 5; };
  const auto check = [&] {
    const auto both = std::min(sides[0].works.size(), sides[1].works.size());
    for (const auto& s : sides)
      for (std::size_t i = both > 3 ? both - 3 : 0; i < s.works.size(); ++i) {
        const bool met = i < both;
        REQUIRE(s.works[i]->poll().status == (met ? work_status::ok : work_status::pending));
        const auto untouched = &s == &sides[0] ? 1.0f : 2.0f;
        const auto wanted = static_cast<std::ptrdiff_t>(s.memory[i].size());
        REQUIRE(std::count(s.memory[i].begin(), s.memory[i].end(), met ? 3.0f : untouched) ==
                wanted);
      }
    CHECK(sides[0].world->quiescent() == (sides[0].works.size() == sides[1].works.size()));
  };
  while (sides[0].works.size() + sides[1].works.size() < 2 * operations) {
    const auto r = random() % 2;
    auto& mine = sides[r];
    const auto i = mine.works.size();
    if (i == operations || i >= sides[1 - r].works.size() + most_ahead) continue;
    auto& memory = mine.memory.emplace_back(count_of(i), r == 0 ? 1.0f : 2.0f);
    mine.works.push_back(
        mine.world->all_reduce({memory.data(), memory.size(), dtype::f32}, reduction::sum));
    if (random() % 4 == 0) check();
  }
  check();
  for (const auto& s : sides)
    for (const auto& memory : s.memory)
      REQUIRE(std::all_of(memory.begin(), memory.end(), [](float x) { return x == 3.0f; }));
}

// The memory of an operation is reused once all its work handles are gone.
TEST_CASE("a work handle keeps its result while later operations reuse memory") {
  inproc_backend backend;
  const auto first = open(backend, 0, 2);
  const auto second = open(backend, 1, 2);
  const std::size_t count = GENERATE(std::size_t{3}, std::size_t{100'000});
  std::vector<float> a(count), b(count);
  const auto sum_once = [&](float x, float y) {
    std::fill(a.begin(), a.end(), x);
    std::fill(b.begin(), b.end(), y);
    const auto mine = first->all_reduce({a.data(), count, dtype::f32}, reduction::sum);
    second->all_reduce({b.data(), count, dtype::f32}, reduction::sum);
    return mine;
  };
  const auto kept = sum_once(1, 2);
  CHECK(kept->poll().status == work_status::ok);
  for (int i = 0; i < 100; ++i) {
    const auto x = static_cast<float>(i);
    CHECK(sum_once(x, 2)->poll().status == work_status::ok);
    CHECK(std::count(a.begin(), a.end(), x + 2) == static_cast<std::ptrdiff_t>(count));
    CHECK(a == b);
  }
  const auto late = first->barrier("never met");
  CHECK(kept->poll().status == work_status::ok);
  CHECK_THROWS_AS(second->decide(true, decision::all), collective_mismatch);
  CHECK(late->poll().status == work_status::mismatch);
  CHECK(kept->poll().status == work_status::ok);
  CHECK_NOTHROW(kept->wait());
}

TEST_CASE("the last rank to submit completes the operation before its submission returns") {
  inproc_backend backend;
  const auto first = open(backend, 0, 2);
  const auto second = open(backend, 1, 2);
  std::vector<float> a(1 << 20, 1.0f);
  std::vector<float> b(1 << 20, 2.0f);
  const auto work = first->all_reduce({a.data(), a.size(), dtype::f32}, reduction::sum);
  second->all_reduce({b.data(), b.size(), dtype::f32}, reduction::sum);
  CHECK(work->poll().status == work_status::ok);
  CHECK(first->quiescent());
  CHECK(std::count(a.begin(), a.end(), 3.0f) == 1 << 20);
}

TEST_CASE("in a world of one rank operations only copy and complete at once") {
  inproc_backend backend;
  const auto alone = open(backend, 0, 1);
  std::vector<float> in{1, 2};
  std::vector<float> out(2);
  const buffer from{in.data(), 2, dtype::f32};
  const buffer to{out.data(), 2, dtype::f32};
  CHECK(alone->all_gather(from, to)->poll().status == work_status::ok);
  CHECK(out == in);
  out = {0, 0};
  CHECK(alone->reduce_scatter(from, to, reduction::mean)->poll().status == work_status::ok);
  CHECK(out == in);
  CHECK(alone->all_reduce(from, reduction::mean)->poll().status == work_status::ok);
  CHECK_THROWS_AS(alone->broadcast(from, 1), std::invalid_argument);
  CHECK(alone->quiescent());
}

TEST_CASE("work_together runs rank 0's body once per piece on the memory of all ranks") {
  const auto world = GENERATE(1, 2, 3, 7);
  const auto pieces = GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{1000});
  inproc_backend backend{{.cores = 2}};
  std::vector<std::shared_ptr<communicator>> ranks;
  for (int r = 0; r < world; ++r) ranks.push_back(open(backend, r, world));
  std::vector<std::vector<int>> mine(static_cast<std::size_t>(world), std::vector<int>(pieces));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      auto& own = mine[static_cast<std::size_t>(r)];
      const auto body = [&, r](std::span<const void* const> all, std::size_t piece) {
        for (const auto* one : all)
          ++(*static_cast<std::vector<int>*>(const_cast<void*>(one)))[piece];
        if (r != 0) own[piece] = -1000;
      };
      ranks[static_cast<std::size_t>(r)]->work_together("count", &own, pieces, body)->wait();
    });
  for (auto& one : threads) one.join();
  for (const auto& own : mine) CHECK(own == std::vector<int>(pieces, 1));
}

TEST_CASE("work_together detects mismatches and an exception in a body aborts the group") {
  inproc_backend backend;
  const auto first = open(backend, 0, 2), second = open(backend, 1, 2);
  CHECK(first->shares_memory());
  const auto throws = [](std::span<const void* const>, std::size_t) {
    throw std::runtime_error("no piece of mine");
  };
  const auto early = first->work_together("x", nullptr, 2, throws);
  const auto late = second->work_together("x", nullptr, 2, throws);  // runs the pieces at once
  CHECK_THROWS_AS(early->wait(), generation_closed);
  CHECK_THROWS_WITH(early->wait(), Catch::Contains("no piece of mine"));
  CHECK_THROWS_AS(late->wait(), std::runtime_error);
  CHECK(first->quiescent());
  const auto third = open(backend, 0, 2, 2), fourth = open(backend, 1, 2, 2);
  const auto other = third->work_together("x", nullptr, 2, throws);
  const auto differs = fourth->work_together("x", nullptr, 3, throws);
  CHECK_THROWS_AS(differs->wait(), collective_mismatch);
  CHECK_THROWS_WITH(other->wait(), Catch::Contains("work_together \"x\" (2 pieces)"));
}

}  // namespace
}  // namespace troupe::testing
