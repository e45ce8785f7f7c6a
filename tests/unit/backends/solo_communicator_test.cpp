// Goal: the communicator of a rank that sets up alone completes every operation at once. Memory
// looks as if every member had brought what this rank brings.
#include "backends/solo_communicator.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using std::chrono::nanoseconds;

constexpr std::int32_t world = 4;

std::shared_ptr<communicator> rank(std::int32_t number) {
  return solo_communicator(
      {.job = job_id{5}, .generation = generation_id{6}, .rank = number, .world = world});
}

buffer floats(std::vector<float>& memory) { return {memory.data(), memory.size(), dtype::f32}; }

void check_done(const work_ptr& what) {
  CHECK(what->poll().status == work_status::ok);
  CHECK_NOTHROW(what->wait());
}

TEST_CASE("a solo communicator describes the whole group") {
  const auto c = rank(2);
  CHECK(c->group().rank == 2);
  CHECK(c->group().world == world);
  CHECK(c->group().generation == generation_id{6});
  CHECK(c->name() == "solo");
  CHECK_FALSE(c->shares_memory());
  CHECK_FALSE(c->waiting());
  CHECK_FALSE(c->aborted());
  CHECK(c->quiescent());
}

TEST_CASE("reductions and broadcasts leave a solo rank's data as it is") {
  const auto c = rank(1);
  const std::vector<float> before{1, 2, 3};
  for (const auto how : {reduction::sum, reduction::mean, reduction::product}) {
    auto memory = before;
    check_done(c->all_reduce(floats(memory), how));
    CHECK(memory == before);
  }
  auto memory = before;
  check_done(c->broadcast(floats(memory), 0));
  CHECK(memory == before);
}

TEST_CASE("a solo gather has this rank's piece in the place of every member") {
  const auto c = rank(1);
  std::vector<float> in{1, 2};
  std::vector<float> out(in.size() * world, -1);
  check_done(c->all_gather(floats(in), floats(out)));
  CHECK(out == std::vector<float>{1, 2, 1, 2, 1, 2, 1, 2});
  std::vector<float> pair(4, -1);
  check_done(c->all_gather(floats(in), floats(pair), {{1, 3}}));
  CHECK(pair == std::vector<float>{1, 2, 1, 2});
}

TEST_CASE("a solo gather from its own piece of the output does not lose it") {
  const auto c = rank(2);
  std::vector<float> out{0, 0, 0, 0, 7, 8, 0, 0};
  check_done(c->all_gather({out.data() + 4, 2, dtype::f32}, floats(out)));
  CHECK(out == std::vector<float>{7, 8, 7, 8, 7, 8, 7, 8});
}

TEST_CASE("a solo reduce_scatter takes this rank's piece, counted among the members") {
  std::vector<float> in(8);
  std::iota(in.begin(), in.end(), 0.0f);
  std::vector<float> out(2);
  check_done(rank(3)->reduce_scatter(floats(in), floats(out), reduction::sum));
  CHECK(out == std::vector<float>{6, 7});
  std::vector<float> half(in.begin(), in.begin() + 4);
  check_done(rank(3)->reduce_scatter(floats(half), floats(out), reduction::sum, {{1, 3}}));
  CHECK(out == std::vector<float>{2, 3});
  const auto c = rank(0);
  check_done(c->reduce_scatter(floats(in), {in.data() + 1, 2, dtype::f32}, reduction::sum));
  CHECK(std::vector<float>(in.begin(), in.begin() + 4) == std::vector<float>{0, 0, 1, 3});
}

TEST_CASE("solo operations without elements need no memory") {
  const auto c = rank(0);
  const buffer nothing;
  check_done(c->all_reduce(nothing, reduction::sum));
  check_done(c->broadcast(nothing, 0));
  check_done(c->all_gather(nothing, nothing));
  check_done(c->reduce_scatter(nothing, nothing, reduction::sum));
}

TEST_CASE("a solo rank does not wait at barriers and agrees with itself") {
  const auto c = rank(0);
  check_done(c->barrier("all"));
  check_done(c->barrier("pair", nanoseconds{1}, {{0, 1}}));
  for (const auto by : {decision::all, decision::any}) {
    CHECK(c->decide(true, by));
    CHECK_FALSE(c->decide(false, by));
  }
}

TEST_CASE("memory of a solo rank outlives its communicator and is aligned") {
  auto c = rank(0);
  const auto memory = c->allocate(1000);
  CHECK(c->allocate(0) != nullptr);
  c.reset();
  CHECK(reinterpret_cast<std::uintptr_t>(memory.get()) % 64 == 0);
  std::fill_n(static_cast<char*>(memory.get()), 1000, 'x');
}

TEST_CASE("an aborted solo communicator ends later operations with the first reason") {
  const auto c = rank(0);
  std::vector<float> memory{1, 2};
  std::vector<float> whole(8);
  const auto before = c->barrier("before");
  c->abort("enough");
  c->abort("another reason");
  CHECK(c->aborted());
  CHECK(c->quiescent());
  check_done(before);
  for (const auto& late :
       {c->barrier("late"), c->all_reduce(floats(memory), reduction::sum),
        c->broadcast(floats(memory), 0), c->all_gather(floats(memory), floats(whole)),
        c->reduce_scatter(floats(whole), floats(memory), reduction::sum)}) {
    CHECK(late->poll().status == work_status::aborted);
    CHECK(late->poll().text == "enough");
    CHECK_THROWS_WITH(late->wait(), "enough");
  }
  CHECK_THROWS_AS(c->decide(true, decision::any), generation_closed);
}

TEST_CASE("an abort by another thread is seen with its reason") {
  const auto c = rank(0);
  std::thread other{[&] { c->abort("from outside"); }};
  for (;;) {
    const auto end = c->barrier("x")->poll();
    if (end.status == work_status::ok) continue;
    CHECK(end.text == "from outside");
    break;
  }
  other.join();
}

}  // namespace
}  // namespace troupe
