// Goal: the protocol checker reports what it is for and nothing else: two generations at a time,
// steps outside of a generation, missed deadlines, forgotten ranks.
#include <map>

#include "apps/testing/protocol_checker.hpp"
#include "messages/interfaces.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using ms = std::chrono::milliseconds;
constexpr std::int32_t world_of = 2;

// One attempt: what happens, and when, in milliseconds. A phase has a deadline of 4 x 500 ms and
// more.
struct attempt {
  std::map<std::string, int> objections;
  std::uint64_t looked = 0;
  protocol_checker judge{looked, [this](const violation& v) { ++objections[v.oracle]; }};
  attempt_facts facts;
  job_outcome outcome;
  std::int32_t gone = -1;

  attempt() {
    time_knob knob;
    knob.detect = ms{500};
    knob.hook_limit = std::chrono::seconds{20};
    judge.attempt_begins(world_of, derive(knob));
  }
  void announced(lifecycle_kind event, int at, std::uint64_t generation = 1) {
    seen::lifecycle what;
    what.event = event;
    what.generation = generation;
    judge.announced(what, ms{at});
  }
  void torn(std::int32_t rank) { judge.reported(rank, caf::make_message(torn_down{})); }
  void closed(std::int32_t rank) { judge.reported(rank, caf::make_message(closed_generation{})); }
  void begins() {
    announced(lifecycle_kind::generation_forming, 0),
        announced(lifecycle_kind::generation_active, 100);
  }
  void ends(int at) {
    judge.ended(
        outcome, facts, [this](std::int32_t r) { return r == gone; }, ms{at});
  }
};

using objected = std::map<std::string, int>;

}  // namespace

TEST_CASE("a successful run and a failed run violate nothing", "[simulated][protocol]") {
  attempt well;
  well.begins();
  for (std::int64_t step = 1; step < 4; ++step)
    for (std::int32_t r = 0; r < world_of; ++r) well.judge.stepped(r, step);
  well.announced(lifecycle_kind::teardown, 60'000);  // a run has no time limit
  for (std::int32_t r = 0; r < world_of; ++r) well.torn(r);
  well.announced(lifecycle_kind::job_ended, 60'100);
  well.ends(60'200);
  CHECK(well.objections.empty());
  CHECK(well.looked > 15);

  attempt fails;
  fails.begins();
  fails.judge.stepped(0, 1);
  fails.announced(lifecycle_kind::generation_closing, 200);
  fails.judge.stepped(1, 1);  // its lane was in that step
  fails.closed(0), fails.closed(1);
  fails.announced(lifecycle_kind::teardown, 300);
  fails.torn(0), fails.torn(1);
  fails.announced(lifecycle_kind::job_ended, 400);
  fails.ends(500);
  CHECK(fails.objections.empty());

  attempt survived;
  survived.begins();
  survived.announced(lifecycle_kind::generation_closing, 200);
  survived.closed(0);
  survived.announced(lifecycle_kind::teardown, 300);
  survived.torn(0);
  survived.announced(lifecycle_kind::job_ended, 400);
  survived.outcome.survivors = {"rank 1: it was paused"};
  survived.ends(500);
  survived.judge.stepped(1, 1);  // the survivor continued
  CHECK(survived.objections.empty());
  survived.judge.stepped(0, 1);  // that rank had reported that it would not
  CHECK(survived.objections == objected{{protocol_checker::one_generation, 1}});
}

TEST_CASE("a second generation, or a step outside of the generation, is a violation",
          "[simulated][protocol]") {
  const objected once{{protocol_checker::one_generation, 1}};
  attempt two;
  two.begins();
  two.announced(lifecycle_kind::generation_active, 200);
  CHECK(two.objections == once);

  attempt older;
  older.announced(lifecycle_kind::generation_forming, 0, 2);
  older.announced(lifecycle_kind::generation_active, 10, 1);
  CHECK(older.objections == once);

  attempt early;
  early.announced(lifecycle_kind::generation_forming, 0);
  early.judge.stepped(0, 1);
  CHECK(early.objections == once);

  attempt late;
  late.begins();
  late.announced(lifecycle_kind::generation_closing, 200);
  late.closed(1);
  late.judge.stepped(0, 1);
  CHECK(late.objections.empty());
  late.judge.stepped(1, 1);
  CHECK(late.objections == once);
}

TEST_CASE("a rank that neither answers nor ends must be named", "[simulated][protocol]") {
  const auto forgets = [](bool named, bool gone) {
    attempt a;
    a.begins();
    a.announced(lifecycle_kind::teardown, 200);
    a.torn(0);
    a.announced(lifecycle_kind::job_ended, 300);
    if (named) a.outcome.survivors = {"rank 1: teardown for 2.0 s"};
    if (gone) a.gone = 1;
    a.ends(400);
    return a.objections;
  };
  CHECK(forgets(false, false) == objected{{protocol_checker::answered, 1}});
  CHECK(forgets(true, false).empty());
  CHECK(forgets(false, true).empty());
}

TEST_CASE("each phase has a deadline; only a disturbed program has more time",
          "[simulated][protocol]") {
  const auto closing_for = [](int took, bool held_up) {
    attempt a;
    a.begins();
    a.announced(lifecycle_kind::generation_closing, 1000);
    a.announced(lifecycle_kind::teardown, 1000 + took);
    a.torn(0), a.torn(1);
    a.announced(lifecycle_kind::job_ended, 1100 + took);
    a.facts.program = held_up;
    a.facts.delayed = std::chrono::seconds{2};  // of a rank, or of the program
    a.ends(1200 + took);
    return a.objections;
  };
  CHECK(closing_for(2500, false).empty());
  CHECK(closing_for(2600, false) == objected{{protocol_checker::deadline, 1}});
  CHECK(closing_for(2600, true).empty());
  CHECK(closing_for(4600, true) == objected{{protocol_checker::deadline, 1}});
}
