// Goal: observer actors in a simulation receive a job's lifecycle in order and are flushed once; a
// full queue or an exception in an observer does not change the job.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/testing/explore.hpp"
#include "backends/simulated/modular_learner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr std::int32_t rank_count = 3;
constexpr std::int64_t steps = 5;

struct received_events {
  std::map<std::string, int> lifecycle;
  std::string last_event;
  std::map<std::int32_t, std::vector<std::int64_t>> hook_steps;  // of training steps, by rank
  std::vector<std::int64_t> progress;
  std::map<std::string, int> hooks;        // of all ranks, by name
  std::map<std::string, int> collectives;  // of all ranks, by operation, bytes and label
  std::vector<std::string> odd;            // collectives that failed or took no time
  int finished = 0;
  std::uint64_t dropped = 0;
};

class listener : public observer {
public:
  listener(received_events& to, bool hooks) : to_(to), hooks_(hooks) {}
  bool wants_hooks() const override { return hooks_; }
  void on(const observation& what) override {
    CHECK(to_.finished == 0);
    if (const auto* x = std::get_if<seen::lifecycle>(&what)) {
      to_.last_event = std::string{to_string(x->event)};
      ++to_.lifecycle[to_.last_event];
    }
    if (const auto* x = std::get_if<seen::progress>(&what); x && x->at.step != undefined)
      to_.progress.push_back(x->at.step);
    if (const auto* x = std::get_if<seen::hook>(&what)) {
      ++to_.hooks[std::string{name(x->what)}];
      if (name(x->what) == "training_step") to_.hook_steps[x->rank].push_back(where(x->what).step);
    }
    if (const auto* x = std::get_if<seen::collective>(&what)) {
      const auto called = fmt::format("{} {} {}", to_string(x->kind), x->bytes, x->label);
      ++to_.collectives[called];
      if (x->failed || x->took.count() <= 0 || x->ranks != rank_count) to_.odd.push_back(called);
    }
  }
  void finish(std::uint64_t dropped) override {
    ++to_.finished;
    to_.dropped = dropped;
  }

private:
  received_events& to_;
  const bool hooks_;
};

class thrower : public observer {
public:
  void on(const observation&) override { throw std::runtime_error("an observer's own"); }
};

struct observed_run {
  job_outcome outcome;
  received_events all;
  std::uint64_t full = 0;
};

observed_run run(choices from, bool throwing, modular_options train = {}) {
  observed_run facts;
  job what;
  what.options.ranks = rank_count;
  what.options.batch_size = 2;
  what.options.max_epochs = 100;
  what.options.max_steps = steps;
  what.recipe = std::make_shared<modular_recipe>(std::move(train));
  what.observers.push_back([&] { return std::make_unique<listener>(facts.all, true); });
  if (throwing) what.observers.push_back([] { return std::make_unique<thrower>(); });
  simulation in{std::move(from), {}};
  in.marks().draw_rare();
  in.marks().let_rare(true);
  simulated_job r{in, {}};
  r.begin(what);
  while (in.step()) continue;
  REQUIRE(r.ended());
  REQUIRE(in.actors() == 0);
  CHECK(in.troubles().empty());
  facts.outcome = *r.outcome();
  facts.full = in.marks().counts()[static_cast<std::size_t>(coverage_point::observations_full)];
  return facts;
}

choices without_rare_paths(std::uint64_t seed) { return choices::of_list(seed, {}); }

// The queues are full at the pushes `from` to `to`.
choices with_full_queues(std::uint64_t seed, std::uint32_t from, std::uint32_t to) {
  const auto which = static_cast<std::uint32_t>(coverage_point::observations_full);
  std::vector<choice> list{{site::rare, 256 + which, 0, 1}};
  for (auto i = from; i < to; ++i) list.push_back({site::rare, which, i, 1});
  return choices::of_list(seed, list);
}

void check_life(const observed_run& facts) {
  REQUIRE(facts.outcome.ok());
  CHECK(facts.all.finished == 1);
  const std::map<std::string, int> once{
      {"generation_forming", 1},     {"generation_active", 1}, {"rank_started", rank_count},
      {"rank_finished", rank_count}, {"teardown", 1},          {"job_ended", 1}};
  for (const auto& [event, count] : once) {
    INFO(event);
    CHECK(facts.all.lifecycle.at(event) == count);
  }
  CHECK(std::ranges::is_sorted(facts.all.progress));
  for (const auto& [rank, of] : facts.all.hook_steps) CHECK(std::ranges::is_sorted(of));
}

}  // namespace

TEST_CASE("an observer receives each rank's steps in order and is flushed once",
          "[simulated][observers]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto facts = run(without_rare_paths(seed), false);
    check_life(facts);
    CHECK(facts.all.dropped == 0);
    CHECK(facts.full == 0);
    REQUIRE(facts.all.hook_steps.size() == rank_count);
    for (const auto& [rank, of] : facts.all.hook_steps)
      CHECK(of == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  }
}

TEST_CASE("a full queue drops progress and hooks, never lifecycle events",
          "[simulated][observers]") {
  for (const auto& [from, to] : {std::pair{0U, 40U}, {20U, 60U}, {0U, 1000U}}) {
    const auto facts = run(with_full_queues(1, from, to), false);
    check_life(facts);
    CHECK(facts.full > 0);
    CHECK(facts.outcome.result == run(without_rare_paths(1), false).outcome.result);
  }
  CHECK(run(with_full_queues(1, 0, 1000), false).all.dropped > 0);
}

TEST_CASE("observer throws: it is reported, and another observer receives everything",
          "[simulated][observers]") {
  const auto facts = run(without_rare_paths(2), true);
  check_life(facts);
  REQUIRE(facts.outcome.late.size() == 1);
  CHECK(facts.outcome.late.front().what == "an observer's own");
  CHECK(facts.all.lifecycle.at("trouble") == 1);
  CHECK(facts.all.last_event == "job_ended");
  CHECK(facts.outcome.result == run(without_rare_paths(2), false).outcome.result);
}

TEST_CASE("an observer counts the collectives that hooks call, with operation and bytes",
          "[simulated][observers]") {
  // 20 samples make four batches of an epoch.
  modular_options train{.samples = 20};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    train.collectives = false;
    const auto without = run(without_rare_paths(seed), false, train);
    train.collectives = true;
    const auto with = run(without_rare_paths(seed), false, train);
    check_life(with);
    CHECK(with.all.dropped == 0);
    CHECK(with.all.odd == std::vector<std::string>{});
    const auto& hooks = with.all.hooks;
    auto expected = without.all.collectives;
    expected["barrier 0 epoch"] += hooks.at("on_train_epoch_start");
    expected["all_gather 8 "] += hooks.at("on_train_batch_start");
    expected["decide 1 "] += hooks.at("on_train_batch_end");
    expected["all_reduce 8 "] += hooks.at("on_train_epoch_end");
    CHECK(with.all.collectives == expected);
    CHECK(hooks.at("on_train_batch_end") == steps * rank_count);
    CHECK(hooks.at("on_train_epoch_end") >= rank_count);
    CHECK(with.outcome.result == without.outcome.result);
  }
}

TEST_CASE("hooks that call collectives under swarms of faults", "[simulated][observers]") {
  run_plan plan;
  plan.observer = test_observer::receives;
  plan.faults.may = fault_set::all();
  const auto restarts = GENERATE(0, 3);
  const auto r = explore({.ranks = 4, .collectives = true, .max_restarts = restarts}, plan,
                         {.runs = 100, .vary_job = false});
  for (const auto& bad : r.violating) FAIL(bad.violations.front() << " of seed " << bad.seed);
  CHECK(r.clean());
  CHECK(r.met("hooks called collectives"));
}

TEST_CASE("an observer receives the handled hooks and changes nothing", "[simulated][observers]") {
  const job_spec job{.ranks = 4};
  for (const auto how :
       {test_observer::receives, test_observer::slow, test_observer::throws, test_observer::dead}) {
    INFO(to_string(how));
    run_plan plan;
    plan.observer = how;
    plan.cluster.ranks_per_host = 2;
    plan.simulation.schedule = scheduling::fifo;
    auto reference = reference_of(job);
    const auto watched = run_job(job, plan, choices::of_seed(1), reference);
    CHECK(watched.violations.empty());
    CHECK(watched.attempts == 1);
    plan.observer = test_observer::none;
    const auto alone = run_job(job, plan, choices::of_seed(1), reference);
    CHECK(watched.weights_digest == alone.weights_digest);
    CHECK(watched.hashes.state == alone.hashes.state);
    CHECK(watched.events > alone.events);
  }
}

TEST_CASE("observers of every behaviour pass their oracle under swarms of faults",
          "[simulated][observers]") {
  for (const auto how :
       {test_observer::receives, test_observer::slow, test_observer::throws, test_observer::dead}) {
    INFO(to_string(how));
    run_plan plan;
    plan.observer = how;
    plan.faults.may = fault_set::all();
    const auto r = explore({.ranks = 4}, plan, {.runs = 60});
    for (const auto& bad : r.violating) FAIL(bad.violations.front() << " of seed " << bad.seed);
    CHECK(r.clean());
    CHECK(r.met("a queue of observations is full"));
  }
}
