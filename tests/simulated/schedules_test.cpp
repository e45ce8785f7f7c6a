// Goal: each schedule finds its kind of bug in the same number of runs of a small simulation. PCT
// finds orders that need few decisions held for long, which a random walk does not find. The walk
// finds a tight window, which PCT does not. Seeds are fixed and both are counted.
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include "apps/testing/simulation.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe::testing;

namespace {

constexpr int actors = 4;
constexpr int events_each = 20;
constexpr std::uint64_t runs = 1000;

struct happened {
  int who = 0;
  int event = 0;  // its own number, from 1
  friend bool operator==(const happened&, const happened&) = default;
};

// Each actor, on its own node, sends itself one message after the other; the schedule decides which
// actor runs. Returns all events in order.
std::vector<happened> order_of(std::uint64_t seed, scheduling how, std::uint32_t depth) {
  simulation_options options;
  options.schedule = how;
  options.depth = depth;
  options.horizon = actors * events_each;
  simulation in{choices::of_seed(seed), options};
  std::vector<happened> order;
  for (int who = 0; who < actors; ++who) {
    const auto made = in.system().spawn([who, &order](caf::event_based_actor* self) {
      return caf::behavior{[=, &order](int event) {
        order.push_back({who, event});
        event < events_each ? self->send(self, event + 1) : self->quit();
      }};
    });
    in.settle(caf::actor_cast<caf::strong_actor_ptr>(made),
              in.add_node(1 + static_cast<std::uint32_t>(who), "actor"));
    caf::anon_send(made, 1);
  }
  for (int limit = 0; limit < 10'000 && in.step(); ++limit) continue;
  return order;
}

auto place(const std::vector<happened>& order, int who, int event) {
  return std::ranges::find(order, happened{who, event}) - order.begin();
}

// Bugs, as orders that break something.
using bug_fn = bool (*)(const std::vector<happened>&);
// Depth 1: one actor does not run before another one has ended.
bool starves(const std::vector<happened>& o) { return place(o, 0, 1) > place(o, 1, events_each); }
// Depth 2: in addition, it is interrupted once: all events of another actor lie between two of its
// own.
bool overtaken(const std::vector<happened>& o) {
  for (int event = 1; event < events_each; ++event)
    if (place(o, 0, event) < place(o, 1, 1) && place(o, 1, events_each) < place(o, 0, event + 1))
      return true;
  return false;
}
// A tight window: two alternating pairs of events of two actors, in the middle of their lives. PCT
// would need more changes than depth 3 has; nodes of one priority alternate after every event.
bool squeezed(const std::vector<happened>& o) {
  return place(o, 0, 9) < place(o, 1, 10) && place(o, 1, 11) < place(o, 0, 10) &&
         place(o, 0, 11) < place(o, 1, 12);
}

std::uint64_t found(bug_fn is_there, scheduling how, std::uint32_t depth = 0) {
  std::uint64_t count = 0;
  for (std::uint64_t seed = 1; seed <= runs; ++seed)
    count += is_there(order_of(seed, how, depth)) ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("in the small simulation every event happens once and in order", "[schedules]") {
  for (const auto how : {scheduling::fifo, scheduling::random, scheduling::pct}) {
    const auto order = order_of(9, how, 3);
    REQUIRE(order.size() == actors * events_each);
    for (int who = 0; who < actors; ++who)
      for (int event = 1; event < events_each; ++event)
        REQUIRE(place(order, who, event) < place(order, who, event + 1));
    CHECK(order_of(9, how, 3) == order);
  }
  for (const auto bug : {starves, overtaken, squeezed})
    CHECK_FALSE(bug(order_of(1, scheduling::fifo, 0)));
}

TEST_CASE("pct finds a starved actor; a random walk does not", "[schedules]") {
  const auto by_pct = found(starves, scheduling::pct, 1);
  const auto by_walk = found(starves, scheduling::random);
  INFO("of " << runs << " runs pct(1) " << by_pct << ", random " << by_walk);
  CHECK(by_pct >= runs / 4);
  CHECK(by_walk == 0);
}

TEST_CASE("pct of depth 2 finds an order that needs one change; a walk and depth 1 do not",
          "[schedules]") {
  const auto by_pct = found(overtaken, scheduling::pct, 2);
  const auto by_less = found(overtaken, scheduling::pct, 1);
  const auto by_walk = found(overtaken, scheduling::random);
  INFO("of " << runs << " runs pct(2) " << by_pct << ", pct(1) " << by_less << ", random "
             << by_walk);
  CHECK(by_pct >= runs / 50);
  CHECK(by_less == 0);
  CHECK(by_walk == 0);
}

TEST_CASE("a random walk finds a tight window; pct does not", "[schedules]") {
  const auto by_walk = found(squeezed, scheduling::random);
  const auto by_pct = found(squeezed, scheduling::pct, 3);
  INFO("of " << runs << " runs random " << by_walk << ", pct(3) " << by_pct);
  CHECK(by_walk >= runs / 200);
  CHECK(by_pct == 0);
}
