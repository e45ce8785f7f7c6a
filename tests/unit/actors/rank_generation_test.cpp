// What the rank machine keeps of one generation.
#include "actors/rank_generation.hpp"

#include <functional>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

form_generation second_generation() {
  form_generation order;
  order.at.job = job_id{1};
  order.at.generation = generation_id{2};
  order.at.incarnation = incarnation_id{7};
  order.world = 3;
  order.base.number = 4;
  order.base.loop.steps = 3;
  order.holders = {0, 2};
  order.resume = "step-2";
  return order;
}

}  // namespace

TEST_CASE("a generation knows which ranks hold its base", "[rank_generation]") {
  auto order = second_generation();
  auto at = rank_generation::of(order);
  CHECK(at.has_base());
  CHECK(at.held_by(0));
  CHECK_FALSE(at.held_by(1));
  CHECK_FALSE(at.held_by_all());
  order.holders = {0, 1, 2};
  CHECK(rank_generation::of(order).held_by_all());
  order.base.number = 0;  // all begin anew
  CHECK_FALSE(rank_generation::of(order).has_base());
  CHECK_FALSE(rank_generation::of(order).held_by(0));
}

TEST_CASE("the next generation keeps its orders unchanged, and refuses those of another one",
          "[rank_generation]") {
  const auto order = second_generation();
  next_generation next{order};
  const auto formed = next.formed();
  CHECK(formed.at == order.at);
  CHECK(formed.world == order.world);
  CHECK(formed.base == order.base);
  CHECK(formed.holders == order.holders);
  CHECK(formed.resume == order.resume);
  CHECK_FALSE(next.closed());
  const auto before = next;
  auto close = close_generation{order.at, make_failure(failure_kind::down, "gone"), false};
  close.at.generation = generation_id{1};
  CHECK_FALSE(next.take(close));
  CHECK(next == before);
  close.at = order.at;
  const bool last = GENERATE(false, true);
  close.last = last;
  CHECK(next.take(close));
  REQUIRE(next.closed());
  CHECK(next.closed()->at == order.at);
  CHECK(next.closed()->first == close.first);
  CHECK(next.closed()->last == last);
  CHECK_FALSE(next == before);
}

TEST_CASE("generations of a rank that differ in one member have different digests",
          "[rank_generation]") {
  using change = std::function<void(rank_generation&)>;
  const std::vector<change> changes{
      [](auto&) {},
      [](auto& g) { g.world = 4; },
      [](auto& g) { g.base.number = 9; },
      [](auto& g) { g.holders.pop_back(); },
      [](auto& g) { g.resume.clear(); },
      [](auto& g) { g.overdue = true; },
      [](auto& g) { g.ended_by = stop_reason::caller; },
      [](auto& g) { g.failed_with.type = "x"; },
      [](auto& g) { g.first.type = "x"; },
      [](auto& g) { g.over = true; },
      [](auto& g) { g.rewinding = true; },
      [](auto& g) { g.orderly = false; },
      [](auto& g) { g.tear_down_asked = true; },
  };
  std::set<std::uint64_t> digests;
  for (const auto& apply : changes) {
    auto one = rank_generation::of(second_generation());
    apply(one);
    stable_hasher hash;
    one.add_to(hash);
    digests.insert(hash.digest());
  }
  CHECK(digests.size() == changes.size());
}
