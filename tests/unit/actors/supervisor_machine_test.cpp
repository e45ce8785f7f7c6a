// Goal: a step is reported as committed only if all ranks hold it, in any order of messages. Only
// ranks that did not end are listed as survivors.
#include "actors/supervisor_machine.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

struct supervised {
  explicit supervised(std::int32_t world = 2, supervision::rules rules = {})
      : ranks(world), machine(job_id{1}, world, derive({}), std::move(rules)) {}
  std::int32_t ranks;
  supervisor_machine machine;
  std::vector<supervision::action> last;

  template <class Event>
  void on(Event e) {
    last = machine.on(e);
  }
  incarnation_id life_of(std::int32_t rank) const {
    return incarnation_id{static_cast<std::uint64_t>(18 + ranks - rank)};
  }
  fence of(std::int32_t rank, std::int64_t step) const {
    fence at;
    at.job = job_id{1};
    at.generation = machine.generation();
    at.incarnation = life_of(rank);
    at.step = step_id{step};
    return at;
  }
  void form() {
    supervision::begin all;
    for (std::int32_t r = 0; r < ranks; ++r) all.incarnations.push_back(life_of(r));
    on(all);
    for (std::int32_t r = 0; r < ranks; ++r) on(prepared{of(r, 0)});
  }
  const supervision::complete* completed() const {
    return last.empty() ? nullptr : std::get_if<supervision::complete>(&last.back());
  }
  std::vector<std::int64_t> commits() const {
    std::vector<std::int64_t> steps;
    for (const auto& a : last)
      if (const auto* x = std::get_if<supervision::commit>(&a)) steps.push_back(x->steps);
    return steps;
  }
  std::vector<std::int64_t> stops() const {
    std::vector<std::int64_t> steps;
    for (const auto& a : last)
      if (const auto* x = std::get_if<supervision::send>(&a))
        if (const auto* order = std::get_if<stop_at>(&x->what))
          steps.push_back(order->at.step.value());
    return steps;
  }
  std::uint64_t deadline() const {
    for (auto a = last.rbegin(); a != last.rend(); ++a)
      if (const auto* x = std::get_if<supervision::arm>(&*a)) return x->id;
    return 0;
  }
  std::chrono::nanoseconds armed() const {
    for (auto a = last.rbegin(); a != last.rend(); ++a)
      if (const auto* x = std::get_if<supervision::arm>(&*a)) return x->delay;
    return {};
  }
  // All ranks close if they have to, and end. Then the checkpointer finishes.
  void end_ranks() {
    if (machine.phase() == supervision::phase::closing)
      for (std::int32_t r = 0; r < ranks; ++r) on(closed_generation{.at = of(r, 0), .last = true});
    for (std::int32_t r = 0; r < ranks; ++r) on(torn_down{of(r, 0), {}, {}, {}});
    for (std::int32_t r = 0; r < ranks; ++r) on(supervision::rank_down{r, ""});
    REQUIRE(machine.phase() == supervision::phase::flushing_checkpointer);
  }
  void fail(std::int32_t rank, std::int64_t step) {
    failure bad;
    bad.type = "std::bad_alloc";
    bad.rank = rank;
    bad.step = step;
    on(rank_failed{of(rank, step), without_exception(bad)});
  }
  // The events after the last rank's report.
  void flush() {
    on(supervision::checkpointer_done{});
    on(supervision::observers_done{});
  }
};

// Of rank 0, with the number of its run.
failure thrown_at(std::int64_t step) {
  failure bad;
  bad.type = "std::bad_alloc";
  bad.rank = 0;
  bad.step = step;
  bad.generation = 1;
  bad.sequence = 20;
  return bad;
}

}  // namespace

TEST_CASE("a step is committed when every rank has done it in any order of reports",
          "[supervisor]") {
  supervised s;
  s.form();
  s.on(step_done{s.of(0, 1)});
  s.on(step_done{s.of(0, 2)});
  s.on(step_done{s.of(0, 2)});
  CHECK(s.machine.committed() == 0);
  s.on(step_done{s.of(1, 1)});
  CHECK(s.machine.committed() == 1);
  s.on(step_done{s.of(1, 2)});
  CHECK(s.machine.committed() == 2);
  s.on(step_done{s.of(1, 3)});
  CHECK(s.machine.committed() == 2);
  s.on(step_done{s.of(0, 3)});
  CHECK(s.machine.committed() == 3);
}

// Guards against quadratic work: with 10,000 ranks it took 1.1 s when each order read all votes.
TEST_CASE("all ranks stop at the highest vote once every rank has voted", "[supervisor]") {
  const auto ranks = GENERATE(2, 10'000);
  supervised s{ranks};
  s.form();
  s.on(request_stop{stop_reason::caller});
  for (std::int32_t r = 0; r < ranks; ++r) {
    CHECK(s.stops().empty());
    s.on(stop_vote{s.of(r, 3 + (r + 1) % 2)});
  }
  const std::vector<std::int64_t> all(static_cast<std::size_t>(ranks), 4);
  CHECK(s.stops() == all);
  s.on(stop_vote{s.of(1, 9)});  // too late
  CHECK(s.stops().empty());
}

TEST_CASE("a failed job does not count a step that only one finished rank has done",
          "[supervisor]") {
  supervised s;
  s.form();
  for (std::int64_t step = 1; step <= 4; ++step)
    for (std::int32_t r : {0, 1}) s.on(step_done{s.of(r, step), 1, 10 * step});
  loop_state loop;
  loop.steps = 5;
  loop.samples = 50;
  s.on(step_done{s.of(0, 5)});
  s.on(rank_finished{s.of(0, 5), loop});
  failure bad;
  bad.type = "std::bad_alloc";
  bad.rank = 1;
  s.on(rank_failed{s.of(1, 4), without_exception(bad)});
  for (std::int32_t r : {0, 1}) s.on(closed_generation{.at = s.of(r, 4), .last = true});
  for (std::int32_t r : {0, 1}) s.on(torn_down{s.of(r, 4), {}, {}, {}});
  for (std::int32_t r : {0, 1}) s.on(supervision::rank_down{r, ""});
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  REQUIRE(s.completed());
  CHECK(s.completed()->status == job_outcome::ending::failed);
  CHECK(s.completed()->loop.steps == 4);
  CHECK(s.completed()->loop.epoch == 1);
  CHECK(s.completed()->loop.samples == 40);
}

TEST_CASE("the last point that rank 0 saves is committed, though a lost rank never reported it",
          "[supervisor]") {
  supervised s;
  s.form();
  for (std::int32_t r : {0, 1}) s.on(step_done{s.of(r, 1), 0, 10});
  s.on(step_done{s.of(0, 2), 0, 20});
  auto killed = make_failure(failure_kind::signal, "killed");
  killed.rank = 1;
  s.on(rank_failed{s.of(1, 1), without_exception(killed), true});
  CHECK(s.machine.committed() == 1);
  closed_generation closed{.at = s.of(0, 2), .last = true};
  closed.held.number = 3;
  closed.held.loop.steps = 2;
  closed.held.loop.samples = 20;
  auto without = s;
  without.on(closed);
  CHECK(without.commits().empty());
  closed.saves = true;
  s.on(closed);
  CHECK(s.commits() == std::vector<std::int64_t>{2});
  CHECK(s.machine.committed() == 2);
}

TEST_CASE("a step completed while the generation closes is committed", "[supervisor]") {
  supervised s;
  s.form();
  s.on(step_done{s.of(0, 1)});
  s.fail(0, 1);
  REQUIRE(s.machine.phase() == supervision::phase::closing);
  s.on(step_done{s.of(1, 1)});  // sent before the rank received the order to close
  CHECK(s.commits() == std::vector<std::int64_t>{1});
  CHECK(s.machine.committed() == 1);
}

TEST_CASE("finished ranks commit their last step even if its step_done was lost", "[supervisor]") {
  supervised s;
  s.form();
  loop_state loop;
  loop.steps = 3;
  s.on(rank_finished{s.of(0, 3), loop});
  CHECK(s.commits().empty());
  s.on(rank_finished{s.of(1, 3), loop});
  CHECK(s.commits() == std::vector<std::int64_t>{3});
  CHECK(s.machine.phase() == supervision::phase::tearing);
}

TEST_CASE("a rank that closes late but ends in time is not listed as a survivor", "[supervisor]") {
  for (const bool comes_out : {true, false}) {
    supervised s;
    s.form();
    s.fail(0, 0);
    const auto close = s.deadline();
    s.on(closed_generation{.at = s.of(0, 0), .last = true});
    s.on(rank_busy{s.of(1, 0), "on_exception for 2.0 s"});
    s.on(deadline_passed{close});
    REQUIRE(s.machine.phase() == supervision::phase::tearing);
    const auto teardown = s.deadline();
    s.on(torn_down{s.of(0, 0), {}, {}, {}});
    s.on(supervision::rank_down{0, ""});
    if (comes_out) {
      s.on(torn_down{s.of(1, 0), {}, {}, {}});
      s.on(supervision::rank_down{1, ""});
    } else {
      s.on(deadline_passed{teardown});
      s.on(torn_down{s.of(1, 0), {}, {}, {}});  // too late: the rank was abandoned
    }
    s.flush();
    REQUIRE(s.completed());
    using texts = std::vector<std::string>;
    CHECK(s.completed()->survivors ==
          (comes_out ? texts{} : texts{"rank 1: on_exception for 2.0 s"}));
  }
}

TEST_CASE("a rank whose snapshot is arriving is waited for while it ends", "[supervisor]") {
  supervised s;
  s.form();
  s.fail(1, 4);
  for (std::int32_t r : {0, 1}) s.on(closed_generation{.at = s.of(r, 4), .last = true});
  REQUIRE(s.machine.phase() == supervision::phase::tearing);
  auto deadline = s.deadline();
  s.on(torn_down{s.of(1, 4), {}, {}, {}});
  s.on(supervision::rank_down{1, ""});
  const auto look = [&] {
    s.on(rank_busy{.at = s.of(0, 4), .what = "its snapshot is arriving", .arriving = true});
    s.on(deadline_passed{deadline});
    deadline = s.deadline();
  };
  SECTION("until it has arrived") {
    for (int i = 0; i < 20; ++i) look();
    s.on(torn_down{s.of(0, 4), {}, {}, {}});
    s.on(supervision::rank_down{0, ""});
    s.flush();
    REQUIRE(s.completed());
    CHECK(s.completed()->survivors.empty());
  }
  SECTION("until no more of it arrives") {
    for (int i = 0; i < 20; ++i) look();
    s.on(deadline_passed{deadline});
    CHECK(s.machine.phase() == supervision::phase::flushing_checkpointer);
  }
  SECTION("for the limit of a hook at most") {
    const auto most = derive({}).hook_limit / derive({}).teardown;
    for (int i = 0; i < most - 1; ++i) look();
    REQUIRE(s.machine.phase() == supervision::phase::tearing);
    look();
    CHECK(s.machine.phase() == supervision::phase::flushing_checkpointer);
    s.flush();
    REQUIRE(s.completed());
    CHECK(s.completed()->survivors == std::vector<std::string>{"rank 0: its snapshot is arriving"});
  }
  SECTION("not when the job is aborted, which is to end soon") {
    s.on(request_abort{"enough"});
    look();
    CHECK(s.machine.phase() == supervision::phase::flushing_checkpointer);
  }
}

TEST_CASE("a cause that arrives while ranks end replaces a failure that follows from it",
          "[supervisor]") {
  const std::string hook = GENERATE("training_step", "teardown");
  supervised s;
  s.form();
  const auto thrown = [&](std::int32_t rank, std::string where, bool follows) {
    failure what;
    what.rank = rank;
    what.step = 4;
    what.hook = std::move(where);
    what.generation = 1;
    what.follows = follows;
    s.on(rank_failed{s.of(rank, 4), without_exception(what)});
  };
  thrown(1, "training_step", true);
  s.on(deadline_passed{s.deadline()});  // no cause came
  const auto close = s.deadline();
  s.on(closed_generation{.at = s.of(1, 4), .last = true});
  s.on(deadline_passed{close});  // rank 0 did not answer: its messages are on their way
  REQUIRE(s.machine.phase() == supervision::phase::tearing);
  thrown(0, hook, false);
  thrown(0, "on_exception", true);
  s.end_ranks();
  s.flush();
  REQUIRE(s.completed());
  const auto& first = *s.completed()->first;
  const bool is_cause = hook != "teardown";  // which is later than what ended the generation
  CHECK(first.rank == (is_cause ? 0 : 1));
  CHECK(first.hook == "training_step");
  CHECK(first.follows == !is_cause);
  REQUIRE(first.others.size() == 2);
  for (const auto& other : first.others) CHECK(other.follows);
}

TEST_CASE("rank 0 does not end its teardown in time: a job with a result fails", "[supervisor]") {
  const bool has_result = GENERATE(true, false);
  const bool torn = GENERATE(true, false);
  supervised s{2, {.has_result = has_result}};
  s.form();
  for (std::int32_t r : {0, 1}) s.on(rank_finished{s.of(r, 0)});
  const auto teardown = s.deadline();
  s.on(torn_down{s.of(1, 0), {}, {}, {}});
  s.on(supervision::rank_down{1, ""});
  if (torn) s.on(torn_down{s.of(0, 0), {}, {}, {}});  // with the result; its actor hangs
  s.on(deadline_passed{teardown});
  s.flush();
  REQUIRE(s.completed());
  CHECK(s.completed()->survivors.size() == 1);
  CHECK((s.completed()->status == job_outcome::ending::failed) == (has_result && !torn));
  if (!has_result || torn) return;
  const auto& first = *s.completed()->first;
  CHECK(first.kind == failure_kind::deadline);
  CHECK(first.rank == 0);
  CHECK(first.what.starts_with(s.completed()->survivors[0] + ": its teardown did not end"));
}

TEST_CASE("abort: the checkpointer has the time of a teardown to finish", "[supervisor]") {
  supervised s;
  s.form();
  s.on(request_abort{"enough"});
  s.end_ranks();
  CHECK(s.armed() == derive({}).teardown);
  s.on(deadline_passed{s.deadline()});
  s.on(supervision::observers_done{});
  REQUIRE(s.completed());
  CHECK(s.completed()->first->kind == failure_kind::aborted);
  REQUIRE(s.completed()->late.size() == 1);
  CHECK(s.completed()->late[0].what ==
        "the last checkpoint is not durable: its storage operation did not end within 2000 ms "
        "after the job was aborted");
}

TEST_CASE("abort after another failure, and abort in the teardown: the same", "[supervisor]") {
  for (const bool closes : {true, false}) {
    supervised s;
    s.form();
    if (closes) s.fail(0, 0);
    if (!closes)
      for (std::int32_t r : {0, 1}) s.on(rank_finished{s.of(r, 0)});
    s.on(request_abort{"enough"});
    s.end_ranks();
    CHECK(s.armed() == derive({}).teardown);
  }
}

TEST_CASE("a failure in the teardown of a failed job is not the job's cause", "[supervisor]") {
  enum class late { process_ends, abort };
  const auto how = GENERATE(late::process_ends, late::abort);
  supervised s;
  s.form();
  s.on(rank_failed{s.of(0, 5), without_exception(thrown_at(5))});
  for (std::int32_t r : {0, 1}) s.on(closed_generation{.at = s.of(r, 5), .last = true});
  REQUIRE(s.machine.phase() == supervision::phase::tearing);
  auto killed = make_failure(failure_kind::signal, "killed");
  killed.rank = 1;
  killed.step = 5;
  killed.generation = 1;
  killed.hook = hooks::teardown::name;
  if (how == late::process_ends) s.on(rank_failed{s.of(1, 5), without_exception(killed), true});
  if (how == late::abort) s.on(request_abort{"enough"});
  for (std::int32_t r : {0, 1}) s.on(torn_down{s.of(r, 5), {}, {}, {}});
  for (std::int32_t r : {0, 1}) s.on(supervision::rank_down{r, ""});
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  REQUIRE(s.completed());
  CHECK(s.completed()->first->type == "std::bad_alloc");
  CHECK(s.completed()->first->others.size() == (how == late::process_ends ? 1 : 0));
}

TEST_CASE("a process that ends in on_exception is not the cause of the failure", "[supervisor]") {
  supervised s;
  s.form();
  s.on(rank_failed{s.of(0, 5), without_exception(thrown_at(5))});
  auto killed = make_failure(failure_kind::signal, "killed");
  killed.rank = 1;
  killed.step = 5;
  killed.generation = 1;
  killed.hook = hooks::on_exception::name;
  s.on(rank_failed{s.of(1, 5), without_exception(killed), true});
  s.on(closed_generation{.at = s.of(0, 5), .last = true});
  s.on(torn_down{s.of(0, 5), {}, {}, {}});
  s.on(supervision::rank_down{0, ""});
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  REQUIRE(s.completed());
  CHECK(s.completed()->first->type == "std::bad_alloc");
}

TEST_CASE("abort while the checkpointer finishes: once, the wait becomes short", "[supervisor]") {
  for (const bool in_time : {true, false}) {
    supervised s;
    s.form();
    for (std::int32_t r : {0, 1}) s.on(rank_finished{s.of(r, 0)});
    s.end_ranks();
    CHECK(s.armed() == derive({}).flush);
    const auto late = s.deadline();
    s.on(request_abort{"enough"});
    CHECK(s.armed() == derive({}).teardown);
    CHECK(s.deadline() > late);
    const auto soon = s.deadline();
    s.on(request_abort{"enough"});
    CHECK(s.last.empty());
    if (in_time) s.on(supervision::checkpointer_done{});
    if (!in_time) s.on(deadline_passed{soon});
    s.on(supervision::observers_done{});
    REQUIRE(s.completed());
    CHECK((s.completed()->status == job_outcome::ending::failed) == !in_time);
    CHECK((s.completed()->first && s.completed()->first->code == errc::checkpoint) == !in_time);
  }
}

TEST_CASE("abort of a job that saves its last point: the checkpointer has its whole time",
          "[supervisor]") {
  supervised s{2, {.saves = true}};
  s.form();
  s.on(request_abort{"enough"});
  s.end_ranks();
  CHECK(s.armed() == derive({}).flush);
  s.on(request_abort{"I mean it"});
  CHECK(s.armed() == derive({}).teardown);
  s.on(request_abort{"I mean it"});
  CHECK(s.last.empty());
}

TEST_CASE("a rank lost before the first step of a resumed job names the step resumed at",
          "[supervisor]") {
  for (const bool far : {false, true}) {
    INFO("in a process of its own: " << far);
    supervised s;
    loop_state from;
    from.steps = 7;
    s.on(supervision::begin{{s.life_of(0), s.life_of(1)}, from});
    auto what = make_failure(failure_kind::signal, "killed");
    what.rank = 1;
    if (far) s.on(rank_failed{s.of(1, 0), without_exception(what), true});
    if (!far) s.on(supervision::rank_down{1, "gone", s.life_of(1)});
    const auto* said = std::get_if<supervision::announce>(&s.last.front());
    REQUIRE(said);
    REQUIRE(said->what.cause);
    CHECK(said->what.cause->rank == 1);
    CHECK(said->what.cause->step == 7);
  }
}
