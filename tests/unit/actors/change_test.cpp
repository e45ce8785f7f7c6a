// Goal: the membership changes at a step boundary, without a failure: nothing is done again, and
// what happens meanwhile has its usual effect.
#include "tests/unit/actors/supervised.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("a process leaves: its rank goes on in another one, and no step is done again",
          "[supervisor]") {
  supervised s{3, 1, true};
  s.step(1);
  s.leave(1);
  REQUIRE(s.orders<propose_stop>().size() == 3);
  s.on(stop_vote{s.of(0, 2)});
  s.on(stop_vote{s.of(1, 3)});
  s.on(stop_vote{s.of(2, 2)});
  const auto stops = s.orders<stop_at>();
  REQUIRE(stops.size() == 3);
  CHECK(stops.front().pause);
  CHECK(stops.front().at.step.value() == 4);
  s.on(step_done{s.of(0, 4)});
  s.on(step_done{s.of(1, 4)});
  CHECK(s.machine.phase() == supervision::phase::active);
  s.on(step_done{s.of(2, 4)});
  const auto closes = s.orders<close_generation>();
  REQUIRE(closes.size() == 3);
  CHECK_FALSE(closes.front().last);
  CHECK(closes.front().first.type.empty());
  CHECK(s.machine.committed() == 4);
  const auto before = s.lives[1];
  s.close_all(6, 4);
  const auto downs = s.orders<tear_down>();
  REQUIRE(downs.size() == 1);
  CHECK(downs.front().at.incarnation == before);
  CHECK_FALSE(downs.front().orderly);
  CHECK(s.started() == ranks_of{1});
  CHECK(s.lives[1] != before);
  CHECK(s.actions<supervision::start_process>() == std::vector<supervision::start_process>{{3}});
  CHECK(s.actions<supervision::end_process>() == std::vector<supervision::end_process>{{1}});
  const auto forms = s.orders<form_generation>();
  REQUIRE(forms.size() == 3);
  CHECK(forms.front().base.loop.steps == 4);
  CHECK(forms.front().holders == ranks_of{0, 2});
  s.process(1, process_changed::change::gone);
  CHECK(s.last.empty());
  s.prepare_all(4);
  CHECK(s.machine.phase() == supervision::phase::active);
  CHECK(s.orders<propose_stop>().empty());
  s.step(5);
  s.kill(0);
  REQUIRE(s.orders<close_generation>().size() == 2);
  CHECK_FALSE(s.orders<close_generation>().front().last);  // the budget is untouched
}

TEST_CASE("the caller stops the job while a process leaves: the job ends", "[supervisor]") {
  const bool named = GENERATE(false, true);
  supervised s{2, 1, true};
  s.leave(0);
  if (named) s.vote(2);
  s.on(request_stop{stop_reason::caller});
  if (!named) s.vote(2);
  const auto stops = s.orders<stop_at>();
  REQUIRE(stops.size() == 2);
  CHECK_FALSE(stops.front().pause);
  CHECK(stops.front().why == stop_reason::caller);
  CHECK(stops.front().at.step.value() == (named ? 3 : 2));
  s.step(3);
  CHECK(s.machine.phase() == supervision::phase::active);
  for (const auto r : {0, 1}) s.on(rank_finished{s.of(r, 3), {}, stop_reason::caller, {}, {}});
  CHECK(s.machine.phase() == supervision::phase::tearing);
}

TEST_CASE("a resumed fit is to stop or to change while its ranks vote without the checkpoint",
          "[supervisor]") {
  const bool stops = GENERATE(true, false);
  supervised s{2, {.elastic = {.max_restarts = 1}, .processes = 2}, 100};
  if (stops)
    s.on(request_stop{stop_reason::caller});
  else
    s.leave(0);
  s.vote(0);
  const auto orders = s.orders<stop_at>();
  REQUIRE(orders.size() == 2);
  CHECK(orders.front().at.step.value() == (stops ? 100 : 101));
}

TEST_CASE("a rank fails while a process leaves: the change happens with the restart",
          "[supervisor]") {
  const bool closing = GENERATE(false, true);
  supervised s{3, 1, true};
  s.leave(1);
  if (closing) {
    s.vote(2);
    s.step(3);
  }
  s.kill(2);
  s.close(0, 5, 3);
  s.close(1, 5, 3);
  CHECK(s.started() == ranks_of{1, 2});
  CHECK(s.orders<form_generation>().front().holders == ranks_of{0});
  s.prepare_all(3);
  CHECK(s.orders<propose_stop>().empty());
  s.step(4);
  s.kill(0);
  CHECK(s.orders<close_generation>().front().last);  // the failure used up the budget
}

TEST_CASE("all processes leave: one rank stays until the others have its state", "[supervisor]") {
  supervised s{2, 1, true};
  s.leave(0);
  s.leave(1);
  s.pause_at(3);
  CHECK(s.started() == ranks_of{1});
  CHECK(s.orders<form_generation>().front().holders == ranks_of{0});
  s.process(1, process_changed::change::gone);
  s.prepare_all(3);
  REQUIRE(s.orders<propose_stop>().size() == 2);
  s.pause_at(5);
  CHECK(s.started() == ranks_of{0});
  CHECK(s.orders<form_generation>().front().holders == ranks_of{1});
  CHECK(s.actions<supervision::end_process>() == std::vector<supervision::end_process>{{0}});
  s.prepare_all(5);
  CHECK(s.orders<propose_stop>().empty());
}

TEST_CASE("a process wants to leave while a generation forms: it leaves after the next step",
          "[supervisor]") {
  supervised s{2, 1, true};
  s.kill(0);
  s.close(1, 3, 1);
  s.leave(1);
  CHECK(s.last.empty());
  s.prepare_all(1);
  CHECK(s.orders<propose_stop>().size() == 2);
}

TEST_CASE("ranks that cannot move: a request to change the membership is trouble", "[supervisor]") {
  const auto world = GENERATE(1, 3);
  supervised s{world, world == 1 ? 3 : 0, true};
  s.leave(0);
  CHECK(s.announced() == std::vector{lifecycle_kind::trouble});
  CHECK(s.orders<propose_stop>().empty());
  s.on(request_scale{2});
  CHECK(s.announced() == std::vector{lifecycle_kind::trouble});
  CHECK(s.orders<propose_stop>().empty());
}

TEST_CASE("the caller scales: the next generation begins at an agreed step", "[supervisor]") {
  supervised s{3, 1, true};
  s.on(request_scale{3});
  CHECK(s.last.empty());
  s.on(request_scale{4});
  CHECK(s.announced() == std::vector{lifecycle_kind::trouble});
  s.on(request_scale{2});
  REQUIRE(s.orders<propose_stop>().size() == 3);
  s.pause_at(3);
  CHECK(s.orders<form_generation>().front().base.loop.steps == 3);
  CHECK(s.started() == ranks_of{2});
  CHECK(s.actions<supervision::start_process>().empty());
  CHECK(s.actions<supervision::end_process>() == std::vector<supervision::end_process>{{2}});
  s.process(2, process_changed::change::gone);
  s.prepare_all(3);
  CHECK(s.orders<propose_stop>().empty());
  s.on(request_scale{3});
  s.pause_at(5);
  CHECK(s.started() == ranks_of{2});
  CHECK(s.actions<supervision::start_process>() == std::vector<supervision::start_process>{{3}});
  CHECK(s.actions<supervision::end_process>().empty());
}

TEST_CASE("ranks finish before the step of the change: the job ends", "[supervisor]") {
  supervised s{2, 1, true};
  s.leave(1);
  s.vote(2);
  s.step(2);
  for (const auto r : {0, 1}) s.on(rank_finished{s.of(r, 2), {}, stop_reason::none, {}, {}});
  CHECK(s.machine.phase() == supervision::phase::tearing);
}

TEST_CASE("a rank that is silent while others pause is asked again", "[supervisor]") {
  supervised s{2, 1, true};
  s.leave(1);
  s.vote(2);
  const auto deadline = s.deadline();
  s.on(step_done{s.of(0, 3)});
  s.on(deadline_passed{deadline});
  const auto again = s.orders<stop_at>();
  REQUIRE(again.size() == 2);
  CHECK(again.front().pause);
  CHECK(again.front().at.step.value() == 3);
}

TEST_CASE("a change waits for ranks that take long to return to their point", "[supervisor]") {
  supervised s{3, 1, true};
  s.leave(1);
  s.vote(2);
  s.step(3);
  s.close(0, 5, 3);
  for (const auto r : {1, 2}) s.on(rank_busy{s.of(r, 3), "rewind for 1.9 s"});
  s.on(deadline_passed{s.deadline()});
  CHECK(s.machine.phase() == supervision::phase::closing);
  CHECK(s.actions<supervision::abandon>().empty());
  for (const auto r : {1, 2}) s.close(r, 5, 3);
  CHECK(s.started() == ranks_of{1});  // the rank of the process that leaves
}

TEST_CASE("a rank that does not close for a change counts as a failure", "[supervisor]") {
  const bool spent = GENERATE(false, true);
  supervised s{3, 1, true};
  if (spent) {
    s.kill(2);
    s.close(0, 3, 0);
    s.close(1, 3, 0);
    s.prepare_all(0);
  }
  s.leave(1);
  s.vote(2);
  s.step(3);
  const auto deadline = s.deadline();
  s.close(0, 5, 3);
  s.close(1, 5, 3);
  s.on(deadline_passed{deadline});
  const auto closes = s.orders<close_generation>();
  CHECK(s.started() == (spent ? ranks_of{} : ranks_of{1, 2}));
  REQUIRE(closes.size() == (spent ? 3U : 0U));
  if (spent) CHECK(closes.front().last);
}
