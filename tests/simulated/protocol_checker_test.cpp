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

  explicit attempt(std::int32_t restarts = 0, bool links = true) {
    time_knob knob;
    knob.detect = ms{500};
    knob.hook_limit = std::chrono::seconds{20};
    judge.attempt_begins(world_of, derive(knob), restarts, links);
  }
  static fence of(std::int32_t rank, std::uint64_t generation) {
    fence at;
    at.incarnation = incarnation_id{static_cast<std::uint64_t>(rank) + 1};
    at.generation = generation_id{generation};
    return at;
  }
  void announced(lifecycle_kind event, int at, std::uint64_t generation = 1,
                 const std::string& why = {}, const std::string& error = {}) {
    seen::lifecycle what;
    if (!why.empty()) what.details["why"] = why;
    if (!error.empty()) what.details["what"] = error;
    what.event = event;
    what.generation = generation;
    judge.announced(what, ms{at});
  }
  void torn(std::int32_t rank) {
    judge.reported(torn_down{.at = of(rank, 1), .result = {}, .late = {}, .last = {}});
  }
  void closed(std::int32_t rank, std::uint64_t generation = 1) {
    judge.reported(closed_generation{.at = of(rank, generation), .held = {}, .digest = {}});
  }
  void is_prepared(std::int32_t rank, std::uint64_t generation) {
    judge.reported(prepared{.at = of(rank, generation), .digest = {}});
  }
  void stepped(std::int32_t rank, std::int64_t step, std::uint64_t generation = 1) {
    judge.stepped(rank, of(rank, generation).incarnation, generation, step);
  }
  void begins() {
    announced(lifecycle_kind::generation_forming, 0),
        announced(lifecycle_kind::generation_active, 100);
  }
  void ends(int at) {
    judge.ended(
        outcome, facts,
        [this](std::int32_t r) {
          return last_life{of(r, 1).incarnation, r == gone};
        },
        ms{at});
  }
};

using objected = std::map<std::string, int>;

}  // namespace

TEST_CASE("a successful run and a failed run violate nothing", "[simulated][protocol]") {
  attempt well;
  well.begins();
  for (std::int64_t step = 1; step < 4; ++step)
    for (std::int32_t r = 0; r < world_of; ++r) well.stepped(r, step);
  well.announced(lifecycle_kind::teardown, 60'000);  // a run has no time limit
  for (std::int32_t r = 0; r < world_of; ++r) well.torn(r);
  well.announced(lifecycle_kind::job_ended, 60'100);
  well.ends(60'200);
  CHECK(well.objections.empty());
  CHECK(well.looked > 15);

  attempt fails;
  fails.begins();
  fails.stepped(0, 1);
  fails.announced(lifecycle_kind::generation_closing, 200);
  fails.stepped(1, 1);  // its lane was in that step
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
  survived.stepped(1, 1);  // the survivor continued
  CHECK(survived.objections.empty());
  survived.stepped(0, 1);  // that rank had reported that it would not
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
  early.stepped(0, 1);
  CHECK(early.objections == once);

  attempt late;
  late.begins();
  late.announced(lifecycle_kind::generation_closing, 200);
  late.closed(1);
  late.stepped(0, 1);
  CHECK(late.objections.empty());
  late.stepped(1, 1);
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

TEST_CASE("a job that restarts closes later for a rank that runs a hook, until that is overdue",
          "[simulated][protocol]") {
  enum class says { nothing, busy, overdue };
  const auto closing_for = [](int took, says what, bool links = true) {
    attempt a{1, links};
    a.begins();
    a.announced(lifecycle_kind::generation_closing, 1000);
    if (what != says::nothing)
      a.judge.reported(rank_busy{attempt::of(0, 1), "training_step", what == says::overdue});
    a.announced(lifecycle_kind::teardown, 1000 + took);
    a.torn(0), a.torn(1);
    a.announced(lifecycle_kind::job_ended, 1100 + took);
    a.ends(1200 + took);
    return a.objections;
  };
  const objected late{{protocol_checker::deadline, 1}};
  CHECK(closing_for(4500, says::nothing).empty());
  CHECK(closing_for(4600, says::nothing) == late);
  CHECK(closing_for(24'500, says::busy).empty());
  CHECK(closing_for(24'600, says::busy) == late);
  CHECK(closing_for(4600, says::overdue) == late);
  CHECK(closing_for(24'500, says::nothing, false).empty());
  CHECK(closing_for(24'600, says::nothing, false) == late);
}

TEST_CASE("a job that restarts: generations follow each other within the budget",
          "[simulated][protocol]") {
  attempt a{2};
  a.begins();
  a.stepped(0, 1), a.stepped(1, 1);
  a.announced(lifecycle_kind::generation_closing, 200);
  a.closed(0), a.closed(1);
  a.announced(lifecycle_kind::generation_forming, 300, 2);
  a.is_prepared(0, 2), a.is_prepared(1, 2);
  a.announced(lifecycle_kind::generation_active, 400, 2);
  a.stepped(0, 2, 2), a.stepped(1, 2, 2);
  CHECK(a.objections.empty());
  a.stepped(1, 2);  // in the generation that it has left
  const objected once{{protocol_checker::one_generation, 1}};
  CHECK(a.objections == once);
  a.stepped(1, 3, 3);  // in one that does not exist yet
  CHECK(a.objections == objected{{protocol_checker::one_generation, 2}});

  attempt late{2};
  late.begins();
  late.announced(lifecycle_kind::generation_closing, 200);
  late.announced(lifecycle_kind::generation_forming, 300, 2);
  late.is_prepared(0, 2);
  late.stepped(1, 1);  // it was replaced and does not know it
  CHECK(late.objections.empty());
  late.stepped(0, 1);
  CHECK(late.objections == once);

  attempt reused{1};
  reused.begins();
  reused.announced(lifecycle_kind::generation_closing, 200);
  reused.announced(lifecycle_kind::generation_forming, 300, 1);
  CHECK(reused.objections == once);

  attempt open{1};
  open.begins();
  open.announced(lifecycle_kind::generation_forming, 300, 2);  // the first one is still active
  CHECK(open.objections == once);

  attempt spent{1};
  spent.begins();
  for (std::uint64_t g = 2; g < 4; ++g) {
    spent.announced(lifecycle_kind::generation_closing, 200, g - 1);
    spent.announced(lifecycle_kind::generation_forming, 300, g);
  }
  CHECK(spent.objections == objected{{protocol_checker::budget, 1}});
}

TEST_CASE("a change without a failure costs no restart, and needs a request",
          "[simulated][protocol]") {
  const auto changes = [](int requests, std::uint64_t generations, bool fails) {
    attempt a{1};
    a.begins();
    for (int i = 0; i < requests; ++i) a.judge.change_requested();
    for (std::uint64_t g = 2; g <= generations; ++g) {
      a.announced(lifecycle_kind::generation_closing, 200, g - 1, "left");
      if (fails) a.announced(lifecycle_kind::rank_failed, 250, g - 1);
      a.announced(lifecycle_kind::generation_forming, 300, g);
      a.announced(lifecycle_kind::generation_active, 400, g);
    }
    return a.objections;
  };
  const objected once{{protocol_checker::budget, 1}};
  CHECK(changes(1, 3, false).empty());  // one rank stayed, and moved with the second change
  CHECK(changes(1, 4, false) == once);
  CHECK(changes(2, 5, false).empty());
  CHECK(changes(0, 2, false) == once);
  CHECK(changes(2, 2, true).empty());  // a rank failed while the generation closed
  CHECK(changes(2, 3, true) == once);
}

TEST_CASE("a generation whose checkpoint was replaced costs no restart, whatever fails after that",
          "[simulated][protocol]") {
  const auto forms_four = [](const std::string& error) {
    attempt a{1};
    a.begins();
    a.announced(lifecycle_kind::rank_failed, 150);
    a.announced(lifecycle_kind::generation_closing, 200);
    for (std::uint64_t g = 2; g <= 3; ++g) {
      a.announced(lifecycle_kind::generation_forming, 300, g);
      a.announced(lifecycle_kind::rank_failed, 310, g, {}, error);
      a.announced(lifecycle_kind::generation_closing, 310, g);
      a.announced(lifecycle_kind::rank_failed, 320, g, {}, "the connection was broken");
    }
    a.announced(lifecycle_kind::generation_forming, 400, 4);
    return a.objections;
  };
  CHECK(forms_four("load_checkpoint: it is not there").empty());
  CHECK(forms_four("bad") == objected{{protocol_checker::budget, 2}});
}
