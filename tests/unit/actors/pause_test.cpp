// Goal: ranks that pause, because the membership changes, wait after the named step without having
// begun the next one. No hook runs twice, and all else that the supervisor may order still works.
#include "actors/rank_machine.hpp"

#include "tests/unit/actors/fit_drive.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

fit_plan plan_to_pause() {
  fit_plan plan;
  plan.max_epochs = 2;
  plan.accumulate = 2;
  plan.val_check_interval = std::int64_t{2};
  plan.checkpoint.every_n_steps = 2;
  plan.keeps_points = true;
  return plan;
}

const facts short_epochs{.train = 5, .val = {2}};

stop_at pause_after(std::int64_t step) {
  auto order = stop_after(step, stop_reason::none);
  order.pause = true;
  return order;
}

// Asks for a vote after so many runs, and lets the machine go on until it holds.
driver voted_after(int runs) {
  driver d{plan_to_pause(), short_epochs};
  d.begin();
  for (int i = 0; i < runs; ++i) d.answer();
  d.give(propose_stop{});
  d.drain();
  return d;
}

/// A rank without peers, and what it sends.
struct lonely_rank {
  rank_machine machine;
  std::optional<hook_run> run;
  std::vector<ranks::report> reports;

  explicit lonely_rank(fit_plan plan = plan_to_pause())
      : machine{{job_id{9}, 0, incarnation_id{100}, shared_value<fit_plan>{std::move(plan)},
                 derive({})}} {
    give(form_generation{at(), 1});
    give(ranks::opened{});
    give(activate_generation{at()});
  }
  static fence at(std::int64_t step = 0) {
    fence one;
    one.job = job_id{9};
    one.generation = generation_id{1};
    one.incarnation = incarnation_id{100};
    one.step = step_id{step};
    return one;
  }
  void give(const ranks::event& what) {
    for (const auto& a : machine.on(what)) {
      if (const auto* submit = std::get_if<ranks::submit>(&a)) run = submit->run;
      if (const auto* report = std::get_if<ranks::report>(&a)) reports.push_back(*report);
    }
  }
  void answer() {
    ranks::answered answer{run->at, static_cast<std::uint32_t>(run->hooks.size()), {}, {}};
    for (const auto& h : run->hooks) {
      if (h.is<hooks::process_dataloader>()) answer.outcome.loaders = {{stage::train, 0, 5, 50}};
      if (h.is<hooks::optimizer_step>()) answer.outcome.samples = 7;
      if (h.is<hooks::rewind>()) answer.outcome.state_digest = "kept";
    }
    run.reset();
    give(answer);
  }
  void pause_at(std::int64_t step) {
    stop_at order{at(step)};
    order.pause = true;
    give(order);
    while (run) answer();
  }
  template <class Report>
  std::vector<Report> all() const {
    std::vector<Report> found;
    for (const auto& r : reports)
      if (const auto* one = std::get_if<Report>(&r)) found.push_back(*one);
    return found;
  }
};

close_generation close_of(bool last) {
  close_generation order{lonely_rank::at(), {}, last};
  if (last) order.first = make_failure(failure_kind::exception, "elsewhere");
  if (last) order.first.type = "elsewhere";
  return order;
}

}  // namespace

TEST_CASE("a fit that pauses anywhere goes on with its next hook", "[fit]") {
  const auto wanted = run_through(plan_to_pause(), short_epochs);
  const auto runs = GENERATE(range(1, 24));
  const auto more = GENERATE(0, 1, 2);
  CAPTURE(runs, more);
  auto d = voted_after(runs);
  const auto step = d.votes.at(0) + more;
  d.give(pause_after(step));
  d.drain();
  if (d.end) {
    CHECK(step >= wanted.end->loop.steps);
  } else {
    REQUIRE(d.machine.paused());
    CHECK(d.machine.loop().steps == step);
    CHECK(d.machine.point().loop == d.machine.loop());
    if (more > 0) CHECK(name(d.hooks.back()) == "on_train_batch_end");
    const auto said = d.steps.size();
    d.give(pause_after(step));
    CHECK(d.steps.size() == said + 1);
    CHECK(d.steps.back() == step);
    d.steps.pop_back();
    CHECK_FALSE(d.run);
    d.interrupt(0);
    CHECK_FALSE(d.machine.paused());
    d.give(fit_events::resume{});
    d.drain();
  }
  REQUIRE(d.end);
  CHECK(d.end == wanted.end);
  CHECK(d.hooks == wanted.hooks);
  CHECK(d.steps == wanted.steps);
}

TEST_CASE("a stop takes the place of a pause at the same step, and stays", "[fit]") {
  const auto runs = GENERATE(range(1, 24));
  const bool waits = GENERATE(false, true);
  auto stopped = voted_after(runs);
  const auto step = stopped.votes.at(0) + 1;
  stopped.give(stop_after(step));
  stopped.drain();
  auto d = voted_after(runs);
  d.give(pause_after(step));
  if (waits) d.drain();
  d.give(stop_after(step));
  d.give(pause_after(step));
  d.drain();
  CAPTURE(runs, waits);
  REQUIRE(d.end);
  CHECK(d.end == stopped.end);
  CHECK(d.hooks == stopped.hooks);
}

TEST_CASE("a fit without points refuses to pause", "[fit]") {
  auto plan = plan_to_pause();
  plan.keeps_points = false;
  driver d{plan, short_epochs};
  d.begin();
  CHECK_THROWS_AS(d.give(pause_after(2)), internal_error);
}

TEST_CASE("a rank that pauses returns its point when the generation closes", "[rank]") {
  lonely_rank r;
  r.pause_at(2);
  CHECK(r.machine.phase() == ranks::phase::active);
  CHECK(r.all<step_done>().size() == 2);
  CHECK(r.all<rank_finished>().empty());
  r.give(close_of(false));
  REQUIRE(r.run);
  CHECK(r.run->hooks.front().is<hooks::rewind>());
  r.answer();
  REQUIRE(r.all<closed_generation>().size() == 1);
  CHECK(r.all<closed_generation>()[0].held.loop.steps == 2);
  CHECK(r.all<closed_generation>()[0].digest == "kept");
}

TEST_CASE("a rank that still closes keeps the order to form the next generation", "[rank]") {
  const bool closed = GENERATE(false, true);
  lonely_rank r;
  r.pause_at(2);
  r.give(close_of(false));
  REQUIRE(r.run);  // it rewinds
  form_generation next{r.at(), 1};
  next.at.generation = generation_id{2};
  next.base.number = r.machine.fit().point().number;
  next.base.loop.steps = 2;
  next.holders = {0};
  r.give(next);
  CHECK(r.machine.phase() == ranks::phase::closing);
  if (closed) r.give(close_generation{next.at, {}, false});
  r.answer();
  CHECK(r.all<closed_generation>().size() == 1);
  CHECK(r.machine.mine().generation == generation_id{2});
  CHECK(r.machine.phase() == (closed ? ranks::phase::closing : ranks::phase::opening));
}

TEST_CASE("a rank that pauses repeats its step when it is asked again", "[rank]") {
  lonely_rank r;
  r.pause_at(2);
  r.give(activate_generation{r.at()});
  r.give(ranks::looked{});
  r.give(propose_stop{r.at()});
  CHECK(r.all<stop_vote>().size() == 1);
  r.pause_at(2);
  REQUIRE(r.all<step_done>().size() == 3);
  CHECK(r.all<step_done>().back().at.step.value() == 2);
  CHECK_FALSE(r.run);
}

TEST_CASE("a rank that closes while it runs a hook says when the hook is overdue", "[rank]") {
  lonely_rank r;
  REQUIRE(r.run);
  r.give(close_of(false));
  REQUIRE(r.machine.phase() == ranks::phase::closing);
  const auto limit = derive({}).hook_limit;
  for (const auto since : {limit / 2, limit}) {
    ranks::looked look{.busy = true, .hook = "training_step"};
    look.since = since;
    r.give(look);
    REQUIRE_FALSE(r.all<rank_busy>().empty());
    CHECK(r.all<rank_busy>().back().overdue == (since == limit));
  }
}

TEST_CASE("the job ends while a rank pauses: it closes and is taken down", "[rank]") {
  lonely_rank r;
  r.pause_at(2);
  r.give(close_of(true));
  REQUIRE(r.run);
  CHECK(r.run->hooks.front().is<hooks::on_exception>());
  r.answer();
  CHECK(r.machine.phase() == ranks::phase::closed);
  r.give(tear_down{r.at(), false});
  REQUIRE(r.run);
  CHECK(r.run->hooks.front().is<hooks::teardown>());
}

TEST_CASE("the job is over while a rank returns to its point: on_exception runs after that",
          "[rank]") {
  lonely_rank r;
  r.pause_at(2);
  r.give(close_of(false));
  REQUIRE(r.run);
  REQUIRE(r.run->hooks.front().is<hooks::rewind>());
  r.give(close_of(true));
  r.answer();
  CHECK(r.all<closed_generation>().empty());
  REQUIRE(r.run);
  CHECK(r.run->hooks.front().is<hooks::on_exception>());
  r.answer();
  REQUIRE(r.all<closed_generation>().size() == 1);
  CHECK(r.all<closed_generation>().front().last);
}

TEST_CASE("once the job is over rank 0 names its last point, if it saves that", "[rank]") {
  const bool saves = GENERATE(false, true);
  auto plan = plan_to_pause();
  plan.checkpoint.on_exception = saves;
  lonely_rank r{plan};
  r.pause_at(1);
  r.give(close_of(true));
  REQUIRE(r.run);
  const auto* hook = r.run->hooks.front().get_if<hooks::on_exception>();
  REQUIRE(hook);
  CHECK(hook->save.has_value() == saves);
  r.answer();
  REQUIRE(r.all<closed_generation>().size() == 1);
  CHECK(r.all<closed_generation>().front().saves == saves);
  const auto& held = r.all<closed_generation>().front().held;
  CHECK(held.number == (saves ? r.machine.fit().point().number : 0));
  CHECK(held.loop.steps == (saves ? 1 : 0));
  CHECK(held.loop.samples == (saves ? 7 : 0));
}

TEST_CASE("a rank whose run ends before the step of the pause finishes", "[rank]") {
  lonely_rank r;
  r.pause_at(7);
  CHECK(r.machine.phase() == ranks::phase::finished);
  CHECK(r.all<rank_finished>().size() == 1);
}
