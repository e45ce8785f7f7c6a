// Goal: after a failure the supervisor forms a generation from what the ranks hold, within its
// budget, and ends the job where another generation would not help.
#include <algorithm>

#include "tests/unit/actors/supervised.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("a rank that dies is replaced and the others go on from their point", "[supervisor]") {
  supervised s;
  s.step(1);
  s.kill(1);
  REQUIRE(s.orders<close_generation>().size() == 2);
  CHECK_FALSE(s.orders<close_generation>().front().last);
  s.close(0, 3, 1);
  const auto before = s.lives[1];
  s.close(2, 3, 1);
  CHECK(s.machine.phase() == supervision::phase::forming);
  CHECK(s.machine.generation() == generation_id{2});
  CHECK(s.started() == ranks_of{1});
  CHECK(s.lives[1] != before);
  const auto forms = s.orders<form_generation>();
  REQUIRE(forms.size() == 3);
  for (const auto& form : forms) {
    CHECK(form.base.number == 3);
    CHECK(form.base.loop.steps == 1);
    CHECK(form.holders == ranks_of{0, 2});
    CHECK(form.at.generation == generation_id{2});
  }
  for (const auto r : {0, 1, 2}) s.on(prepared{s.of(r, 1), "same"});
  CHECK(s.machine.phase() == supervision::phase::active);
  s.step(2);
  CHECK(s.machine.committed() == 2);
}

TEST_CASE("the base is the highest point of a rank that is left, and makes its step committed",
          "[supervisor]") {
  supervised s;
  s.step(1);
  s.kill(1);
  s.close(0, 3, 1);
  s.close(2, 4, 2, "later");
  const auto forms = s.orders<form_generation>();
  REQUIRE(forms.size() == 3);
  CHECK(forms.front().base.loop.steps == 2);
  CHECK(forms.front().holders == ranks_of{2});
  CHECK(s.machine.committed() == 1);
  for (const auto r : {0, 1, 2}) s.on(prepared{s.of(r, 2), "later"});
  CHECK(s.machine.committed() == 2);
}

TEST_CASE("a rank whose state differs from that of the majority receives theirs", "[supervisor]") {
  supervised s;
  s.raise(2);
  s.close(0, 3, 1, "a");
  s.close(1, 3, 1, "b");
  s.close(2, 3, 1, "a");
  CHECK(s.orders<form_generation>().front().holders == ranks_of{0, 2});
}

TEST_CASE("ranks that hold different states without a majority end the job", "[supervisor]") {
  supervised s{2};
  s.raise(1);
  s.close(0, 3, 1, "a");
  s.close(1, 3, 1, "b");
  const auto closes = s.orders<close_generation>();
  REQUIRE(closes.size() == 2);
  CHECK(closes.front().last);
  s.close(0, 0, 1);
  s.close(1, 0, 1);
  CHECK(s.machine.phase() == supervision::phase::tearing);
}

TEST_CASE("a rank that is prepared with another state closes the generation", "[supervisor]") {
  supervised s;
  s.kill(1);
  s.close(0, 3, 1);
  s.close(2, 3, 1);
  s.on(prepared{s.of(1, 1), "other"});
  REQUIRE(s.orders<close_generation>().size() == 3);
  CHECK(s.orders<close_generation>().front().first.what.find("other") != std::string::npos);
}

TEST_CASE("without a rank that holds a point the ranks begin again", "[supervisor]") {
  supervised s;
  for (const auto r : {0, 1, 2}) s.kill(r);
  CHECK(s.started() == ranks_of{0, 1, 2});
  const auto forms = s.orders<form_generation>();
  REQUIRE(forms.size() == 3);
  CHECK(forms.front().base.number == 0);
  CHECK(forms.front().holders.empty());
}

// A write that was in progress when all ranks died ends late; then the checkpointer removes it.
TEST_CASE("without a rank that holds a point the base is the checkpoint reported last",
          "[supervisor]") {
  supervised s;
  s.step(3);
  for (const auto r : {0, 1, 2}) s.kill(r, "SIGKILL");
  REQUIRE(s.actions<supervision::commit>().size() == 1);  // for the checkpointer
  CHECK(s.actions<supervision::commit>().front().steps == 0);
  for (const auto step : {3, 2}) s.on(supervision::durable{{step}});
  for (const auto r : {0, 1, 2}) s.on(prepared{s.of(r)});
  for (const auto r : {0, 1, 2}) s.kill(r, "SIGKILL");
  REQUIRE(s.orders<form_generation>().size() == 3);
  CHECK(s.orders<form_generation>().front().base.loop.steps == 2);
}

TEST_CASE("steps that were lost count in the generation after the failure, although it fails too",
          "[supervisor]") {
  supervised s{1, 2};
  s.on(supervision::durable{{5}});
  s.step(10);
  s.kill(0, "SIGKILL");
  s.on(prepared{s.of(0)});
  s.kill(0, "SIGKILL");  // before its first step
  s.on(prepared{s.of(0)});
  s.step(10);
  s.kill(0, "SIGKILL");  // no restart is left
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  const auto ends = s.actions<supervision::complete>();
  REQUIRE(ends.size() == 1);
  std::vector<std::int64_t> redone;
  for (const auto& g : ends.front().generations) redone.push_back(g.steps_redone);
  CHECK(redone == std::vector<std::int64_t>{0, 5, 0});
}

TEST_CASE("all ranks were lost and the job fails: its outcome has what the checkpoint had come to",
          "[supervisor]") {
  supervised s{1, 1};
  for (const auto step : {1, 2, 3}) s.step(step);
  s.on(supervision::durable{{2, 1, 32}});
  s.kill(0, "SIGKILL");
  s.on(prepared{s.of(0)});
  s.kill(0, "SIGKILL");  // no restart is left
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  const auto ends = s.actions<supervision::complete>();
  REQUIRE(ends.size() == 1);
  CHECK(ends.front().first);
  CHECK(ends.front().loop.steps == 2);
  CHECK(ends.front().loop.epoch == 1);
  CHECK(ends.front().loop.samples == 32);
}

TEST_CASE("a checkpoint of a branch that was given up is the base: the outcome has its progress",
          "[supervisor]") {
  supervised s{1, 2};
  s.on(supervision::durable{{10, 1, 160}});
  s.step(12);
  s.kill(0, "SIGKILL");
  CHECK(s.machine.committed() == 10);
  s.on(supervision::durable{{20, 2, 320}});  // it was in progress
  s.on(prepared{s.of(0)});
  s.step(12);
  s.kill(0, "SIGKILL");
  REQUIRE(s.actions<supervision::commit>().size() == 1);
  CHECK(s.actions<supervision::commit>().front().steps == 20);
  s.on(prepared{s.of(0)});
  s.kill(0, "SIGKILL");  // no restart is left
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  const auto ends = s.actions<supervision::complete>();
  REQUIRE(ends.size() == 1);
  CHECK(ends.front().loop.steps == 20);
  CHECK(ends.front().loop.epoch == 2);
  CHECK(ends.front().loop.samples == 320);
}

TEST_CASE("a job that resumes: its first generation begins with the checkpoint's step",
          "[supervisor]") {
  supervisor_machine machine{job_id{1}, 1, derive({}), {.elastic = {.max_restarts = 1}}};
  supervision::begin begin{{incarnation_id{7}}, {}};
  begin.resumed.steps = 40;
  begin.resumed.samples = 640;
  machine.on(begin);
  CHECK(machine.committed() == 40);
  machine.on(request_abort{"enough", failure_kind::aborted});
  std::optional<supervision::complete> end;
  const auto take = [&](const auto& actions) {
    for (const auto& a : actions)
      if (const auto* last = std::get_if<supervision::complete>(&a)) end = *last;
  };
  fence at;
  at.job = job_id{1};
  at.generation = machine.generation();
  at.incarnation = incarnation_id{7};
  take(machine.on(closed_generation{.at = at, .last = true}));
  take(machine.on(torn_down{at}));
  take(machine.on(supervision::rank_down{0, "", incarnation_id{7}}));
  take(machine.on(supervision::checkpointer_done{}));
  take(machine.on(supervision::observers_done{}));
  REQUIRE(end);
  CHECK(end->first->step == 40);
  CHECK(end->loop.samples == 640);
  REQUIRE(end->generations.size() == 1);
  CHECK(end->generations.front().base_step == 40);
}

TEST_CASE("the failure after the last restart ends the job", "[supervisor]") {
  supervised s{2, 1};
  s.raise(0);
  s.close(0, 3, 0);
  s.close(1, 3, 0);
  for (const auto r : {0, 1}) s.on(prepared{s.of(r), "same"});
  s.step(1);
  s.raise(1);
  REQUIRE(s.orders<close_generation>().size() == 2);
  CHECK(s.orders<close_generation>().front().last);
}

TEST_CASE("a failure that comes back before a step is committed ends the job", "[supervisor]") {
  const bool committed = GENERATE(false, true);
  // Then the step before it is done, though not reported as committed yet.
  const bool in_a_later_step = GENERATE(false, true);
  supervised s{2, 9};
  s.raise(0);
  s.close(0, 3, 0);
  s.close(1, 3, 0);
  for (const auto r : {0, 1}) s.on(prepared{s.of(r), "same"});
  if (committed) s.step(1);
  auto what = make_failure(failure_kind::exception, "bad");
  what.step = in_a_later_step ? 1 : 0;
  s.on(rank_failed{s.of(0), without_exception(what)});
  REQUIRE(s.orders<close_generation>().size() == 2);
  CHECK(s.orders<close_generation>().front().last == !(committed || in_a_later_step));
}

TEST_CASE("a rank that is killed again and again ends the job with the budget", "[supervisor]") {
  const std::string signal = GENERATE("SIGKILL", "SIGSTOP", "SIGSEGV");
  supervised s{2, 3};
  int restarts = 0;
  for (bool over = false; !over; restarts += over ? 0 : 1) {
    s.kill(1, signal);
    over = s.orders<close_generation>().front().last;
    if (over) break;
    s.close(0, 3, 1);
    // Without a committed step in between, later generations wait, longer each time.
    const auto rest = s.armed();
    if (restarts > 1) {
      CHECK(s.machine.phase() == supervision::phase::closing);
      CHECK(rest == std::chrono::milliseconds{50} * (1 << (restarts - 2)));
      s.on(deadline_passed{s.deadline()});
    }
    REQUIRE(s.machine.phase() == supervision::phase::forming);
  }
  CHECK(restarts == (signal == "SIGSEGV" ? 1 : 3));
}

TEST_CASE("a stuck rank whose actor ends before the next generation begins is a survivor",
          "[supervisor]") {
  const bool rests = GENERATE(false, true);
  supervised s{2, 3};
  for (int i = 0; rests && i < 2; ++i) {
    s.kill(0, "SIGKILL");
    s.close(1, 1, 0);
    s.prepare_all(0);
  }
  s.raise(0);
  s.close(0, 1, 0);
  s.on(deadline_passed{s.deadline()});  // rank 1 does not answer
  CHECK((s.machine.phase() == supervision::phase::closing) == rests);
  if (rests) s.on(supervision::rank_down{1, "killed", {}});
  if (rests) s.on(deadline_passed{s.deadline()});
  REQUIRE(s.machine.phase() == supervision::phase::forming);
  for (const auto r : {0, 1}) s.raise(r, errc::bad_configuration);
  for (const auto r : {0, 1}) s.close(r, 1, 0);
  for (const auto r : {0, 1}) s.on(supervision::rank_down{r, "", {}});
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  const auto ends = s.actions<supervision::complete>();
  REQUIRE(ends.size() == 1);
  CHECK(ends.front().survivors ==
        std::vector<std::string>{"rank 1: no answer to close_generation"});
}

TEST_CASE("a wrong configuration never restarts a job", "[supervisor]") {
  const auto code = GENERATE(errc::bad_configuration, errc::internal, errc::checkpoint);
  supervised s;
  s.raise(0, code);
  REQUIRE(s.orders<close_generation>().size() == 3);
  CHECK(s.orders<close_generation>().front().last);
}

TEST_CASE(
    "a checkpoint cannot be loaded: a job that fell back to it restarts once, another job ends",
    "[supervisor]") {
  const auto fails_to_load = [](supervised& s) {
    auto what = make_failure(failure_kind::exception, "no such checkpoint");
    what.rank = 0;
    what.code = errc::checkpoint;
    what.hook = hooks::load_checkpoint::name;
    s.on(rank_failed{s.of(0), without_exception(what)});
    return s.orders<close_generation>().front().last;
  };
  supervised resumed{1};
  CHECK(fails_to_load(resumed));
  supervised fell_back{1};
  fell_back.kill(0);
  fell_back.on(prepared{fell_back.of(0)});
  CHECK_FALSE(fails_to_load(fell_back));
  fell_back.close(0, 0, 0);
  fell_back.on(prepared{fell_back.of(0)});
  CHECK(fails_to_load(fell_back));
}

TEST_CASE("the checkpoint to begin at was replaced by a newer one: no restart is counted",
          "[supervisor]") {
  const auto restarts = GENERATE(1, 2);
  supervised s{1, restarts};
  s.on(supervision::durable{{3}});
  s.kill(0);
  for (std::int64_t newer = 4; newer < 8; ++newer) {
    REQUIRE(s.machine.phase() == supervision::phase::forming);
    s.on(prepared{s.of(0)});
    s.on(supervision::durable{{newer}});
    auto what = make_failure(failure_kind::exception, "no such checkpoint");
    what.rank = 0;
    what.code = errc::checkpoint;
    what.hook = hooks::load_checkpoint::name;
    s.on(rank_failed{s.of(0), without_exception(what)});
    REQUIRE_FALSE(s.orders<close_generation>().front().last);
    s.close(0, 0, 0);
    if (s.machine.phase() == supervision::phase::closing) s.on(deadline_passed{s.deadline()});
  }
  s.on(prepared{s.of(0)});
  s.raise(0);
  CHECK(s.orders<close_generation>().front().last == (restarts == 1));
}

TEST_CASE("an abort while a generation closes ends the job", "[supervisor]") {
  supervised s;
  s.kill(1);
  s.close(0, 3, 1);
  s.on(request_abort{"enough"});
  const auto closes = s.orders<close_generation>();
  REQUIRE(closes.size() == 2);
  CHECK(closes.front().last);
  s.close(0, 0, 1);
  CHECK(s.machine.phase() == supervision::phase::closing);
  s.close(2, 0, 1);
  CHECK(s.machine.phase() == supervision::phase::tearing);
}

TEST_CASE("a rank that does not close in time is abandoned and replaced", "[supervisor]") {
  supervised s;
  s.raise(0);
  const auto deadline = s.deadline();
  s.close(0, 3, 1);
  s.close(2, 3, 1);
  s.on(deadline_passed{deadline});
  CHECK(s.started() == ranks_of{1});
  const bool abandoned = std::ranges::any_of(s.last, [](const auto& a) {
    const auto* x = std::get_if<supervision::abandon>(&a);
    return x && x->rank == 1;
  });
  CHECK(abandoned);
  CHECK(s.orders<form_generation>().front().holders == ranks_of{0, 2});
}

namespace {

// Three ranks hold two steps, of which a checkpoint has `saved`; rank 1 dies. The others say that
// they run a hook.
supervised with_long_hooks(std::int64_t saved) {
  supervised s;
  s.step(1);
  s.step(2);
  s.on(supervision::durable{{saved}});
  s.kill(1);
  for (const auto r : {0, 2}) s.on(rank_busy{s.of(r, 2), "training_step for 1.0 s"});
  return s;
}

}  // namespace

TEST_CASE("ranks that run a hook when another one dies: the job waits for their state",
          "[supervisor]") {
  auto s = with_long_hooks(1);
  s.on(deadline_passed{s.deadline()});
  CHECK(s.machine.phase() == supervision::phase::closing);
  CHECK(s.actions<supervision::abandon>().empty());
  for (const auto r : {0, 2}) s.on(rank_busy{s.of(r, 2), "training_step for 3.0 s"});
  s.on(deadline_passed{s.deadline()});
  CHECK(s.machine.phase() == supervision::phase::closing);
  s.close(0, 3, 2);
  s.on(rank_busy{s.of(2, 2), "training_step for 5.0 s"});
  s.on(deadline_passed{s.deadline()});  // rank 0 holds the step: rank 2 is not waited for
  CHECK(s.started() == ranks_of{1, 2});
  CHECK(s.orders<form_generation>().front().holders == ranks_of{0});
  CHECK(s.orders<form_generation>().front().base.loop.steps == 2);
}

TEST_CASE("a long hook is not waited for: its rank is silent, overdue, or a checkpoint is as new",
          "[supervisor]") {
  const auto all = ranks_of{0, 1, 2};
  auto saved = with_long_hooks(2);
  saved.on(deadline_passed{saved.deadline()});
  CHECK(saved.started() == all);

  auto silent = with_long_hooks(1);
  silent.on(deadline_passed{silent.deadline()});
  silent.on(deadline_passed{silent.deadline()});  // nothing came since
  CHECK(silent.started() == all);

  auto overdue = with_long_hooks(1);
  for (const auto r : {0, 2})
    overdue.on(rank_busy{.at = overdue.of(r, 2), .what = "training_step", .overdue = true});
  overdue.on(deadline_passed{overdue.deadline()});
  CHECK(overdue.started() == all);
}

TEST_CASE("a rank that returns to its point is waited for, whatever others hold", "[supervisor]") {
  const std::int64_t saved = GENERATE(1, 2);
  auto s = with_long_hooks(saved);
  for (int waits = 0; waits < 3; ++waits) {
    s.on(rank_busy{s.of(2, 2), "rewind for 2.0 s"});
    s.on(deadline_passed{s.deadline()});
    REQUIRE(s.machine.phase() == supervision::phase::closing);
    if (waits == 0) s.close(0, 3, 2);
  }
  s.close(2, 3, 2);
  CHECK(s.started() == ranks_of{1});
  CHECK(s.orders<form_generation>().front().holders == ranks_of{0, 2});
}

TEST_CASE("a rank whose snapshot is arriving is waited for, whatever others hold", "[supervisor]") {
  const std::int64_t saved = GENERATE(1, 2);
  auto s = with_long_hooks(saved);
  for (int waits = 0; waits < 3; ++waits) {
    s.on(rank_busy{.at = s.of(0, 2), .what = "its snapshot is arriving", .arriving = true});
    s.on(deadline_passed{s.deadline()});
    REQUIRE(s.machine.phase() == supervision::phase::closing);
    CHECK(s.actions<supervision::abandon>().empty());
    if (waits == 0) s.close(2, 3, 2);
  }
  SECTION("until it has arrived, and its answer") {
    s.close(0, 3, 2);
    CHECK(s.started() == ranks_of{1});
    CHECK(s.orders<form_generation>().front().holders == ranks_of{0, 2});
  }
  SECTION("until no more of it arrives") {
    s.on(deadline_passed{s.deadline()});
    CHECK(s.started() == ranks_of{0, 1});
  }
  SECTION("until it has arrived, when the rank runs a hook") {
    s.on(rank_busy{s.of(0, 2), "training_step for 9.0 s"});
    s.on(deadline_passed{s.deadline()});
    CHECK(s.started() == ranks_of{0, 1});
  }
}

TEST_CASE("the wait for hooks that run has a limit: that of a hook", "[supervisor]") {
  auto s = with_long_hooks(1);
  const auto limits = derive({});
  const auto most = limits.hook_limit / limits.close;
  for (std::int64_t waits = 1; waits < most; ++waits) {
    for (const auto r : {0, 2}) s.on(rank_busy{s.of(r, 2), "training_step"});
    s.on(deadline_passed{s.deadline()});
    REQUIRE(s.machine.phase() == supervision::phase::closing);
  }
  for (const auto r : {0, 2}) s.on(rank_busy{s.of(r, 2), "training_step"});
  s.on(deadline_passed{s.deadline()});
  CHECK(s.started() == ranks_of{0, 1, 2});
}

TEST_CASE("rank 0 runs a long hook when the job fails: its checkpoint is waited for",
          "[supervisor]") {
  const bool saves = GENERATE(true, false);
  supervised s{2, supervision::rules{.saves = saves}};
  s.step(1);
  s.raise(1);
  s.close(1, 3, 1);
  s.on(rank_busy{s.of(0, 1), "training_step for 2.0 s"});
  s.on(deadline_passed{s.deadline()});
  CHECK((s.machine.phase() == supervision::phase::closing) == saves);
  s.on(deadline_passed{s.deadline()});  // it is silent
  CHECK(s.machine.phase() != supervision::phase::closing);
}

TEST_CASE("the job is over while its generation closes: answers to the first order do not count",
          "[supervisor]") {
  supervised s;
  s.step(1);
  s.kill(1, "SIGKILL");
  CHECK_FALSE(s.over);
  closed_generation first{.at = s.of(0, 1)};
  s.raise(2, errc::bad_configuration);  // no restart cures it
  CHECK(s.over);
  s.on(first);
  s.close(2, 0, 1);
  CHECK(s.machine.phase() == supervision::phase::closing);  // rank 0 has its on_exception to run
  s.close(0, 0, 1);
  CHECK(s.machine.phase() == supervision::phase::tearing);
}

TEST_CASE("the end of a rank that was replaced changes nothing", "[supervisor]") {
  supervised s;
  const auto before = s.lives[1];
  s.kill(1);
  s.close(0, 3, 1);
  s.close(2, 3, 1);
  const auto value = s.machine;
  s.on(supervision::rank_down{1, "late", before});
  CHECK(s.machine == value);
}

TEST_CASE("a rank that dies while a generation forms closes it again", "[supervisor]") {
  supervised s;
  s.step(1);
  s.kill(1);
  s.close(0, 3, 1);
  s.close(2, 3, 1);
  s.on(prepared{s.of(0, 1), "same"});
  s.kill(2);
  REQUIRE(s.orders<close_generation>().size() == 2);
  s.close(0, 3, 1);
  s.close(1, 0, 0);
  CHECK(s.machine.generation() == generation_id{3});
  CHECK(s.started() == ranks_of{2});
  CHECK(s.orders<form_generation>().front().holders == ranks_of{0});
}

TEST_CASE("a stop that was requested before a restart is proposed again", "[supervisor]") {
  supervised job(2);
  job.on(request_stop{stop_reason::caller});
  CHECK(job.orders<propose_stop>().size() == 2);
  job.raise(0);
  for (std::int32_t r = 0; r < 2; ++r) job.close(r, 1, 0);
  for (std::int32_t r = 0; r < 2; ++r) job.on(prepared{job.of(r), "same"});
  CHECK(job.machine.phase() == supervision::phase::active);
  CHECK(job.orders<propose_stop>().size() == 2);
  for (std::int32_t r = 0; r < 2; ++r) job.on(stop_vote{job.of(r, 1)});
  CHECK(job.orders<stop_at>().size() == 2);
}

TEST_CASE("a stop that was agreed before a restart is agreed again, by the votes of all ranks",
          "[supervisor]") {
  supervised job(2);
  job.on(request_stop{stop_reason::caller});
  job.vote(2);
  REQUIRE(job.orders<stop_at>().size() == 2);
  job.raise(0);
  for (std::int32_t r = 0; r < 2; ++r) job.close(r, 1, 0);
  for (std::int32_t r = 0; r < 2; ++r) job.on(prepared{job.of(r), "same"});
  CHECK(job.machine.phase() == supervision::phase::active);
  CHECK(job.orders<propose_stop>().size() == 2);
  CHECK(job.orders<stop_at>().empty());
  job.on(stop_vote{job.of(0, 1)});
  CHECK(job.orders<stop_at>().empty());
  job.on(stop_vote{job.of(1, 1)});
  const auto stops = job.orders<stop_at>();
  REQUIRE(stops.size() == 2);
  CHECK(stops.front().at.step.value() == 1);
}

TEST_CASE("failures that follow the first: the order of their reports changes nothing",
          "[supervisor]") {
  const bool early = GENERATE(false, true);
  supervised s{3, 0};
  const auto follow = [&](std::int32_t rank) {
    auto what = make_failure(failure_kind::exception, "closed");
    what.rank = rank;
    what.follows = true;
    s.on(rank_failed{s.of(rank), without_exception(what)});
  };
  if (early) follow(2);
  s.raise(0);
  follow(1);
  if (!early) follow(2);
  for (std::int32_t r = 0; r < 3; ++r) s.close(r, 0, 0);
  for (std::int32_t r = 0; r < 3; ++r) s.on(torn_down{s.of(r), {}, {}, {}});
  for (std::int32_t r = 0; r < 3; ++r) s.on(supervision::rank_down{r, "", s.lives.at(r)});
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  const auto ends = s.actions<supervision::complete>();
  REQUIRE(ends.size() == 1);
  REQUIRE(ends.front().first);
  CHECK(ends.front().first->rank == 0);
  REQUIRE(ends.front().first->others.size() == 2);
  CHECK(ends.front().first->others[0].rank == 1);
  CHECK(ends.front().first->others[1].rank == 2);
}
