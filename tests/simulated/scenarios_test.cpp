// Goal: the fault scenarios of docs/scenarios.md that hit ranks, their clocks, their messages and
// their data, each as one named case. Restarts of single ranks are in restarts_test.cpp.
#include <caf/send.hpp>
#include <stdexcept>
#include <tuple>

#include "tests/simulated/restarts.hpp"
#include "tests/support/damaging_recipe.hpp"

using namespace troupe;
using namespace troupe::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;
using kind = lifecycle_kind;

namespace {

constexpr std::uint64_t scenario_seeds = 12;

// Four ranks of which one sends or receives a damaged bit.
struct damaged_job {
  damaged_job(std::uint64_t seed, bool in_transfer,
              std::function<bool(const learner_context&, const hook&)> when)
      : script({.seed = seed, .schedule = scheduling::random}) {
    modular_options payload;
    payload.samples = what.samples;
    payload.width = what.width;
    payload.stepped = [this](const finished_step& s) {
      digests[{s.generation, s.step, s.rank}] = s.digest;
    };
    job of;
    of.options = what.options();
    of.recipe = std::make_shared<damaging_recipe>(
        std::make_shared<modular_recipe>(std::move(payload)), std::move(when), in_transfer);
    script.begin(std::move(of));
  }
  bool has(std::int32_t rank, std::int64_t step) const {
    return digests.contains({std::uint64_t{1}, step, rank});
  }
  const job_outcome& ends(std::int32_t restarts) {
    const auto& end = script.run();
    if (!end.ok()) FAIL(render(end.failed_with->record));
    CHECK(end.restarts == restarts);
    CHECK(script.weights() == reference.after(what.steps).weights);
    return end;
  }

  job_spec what{.ranks = 4,
                .steps = restarting_job::steps,
                .samples = 40,
                .checkpoint_every = 100,
                .max_restarts = 3};
  modular_reference reference = reference_of(what);
  std::map<std::tuple<std::uint64_t, std::int64_t, std::int32_t>, std::uint64_t> digests;
  scripted_simulation script;
};

std::vector<simulation::node_id> nodes_of(restarting_job& job, std::int32_t ranks) {
  std::vector<simulation::node_id> all{job.script.sim_job().supervisor_node()};
  for (std::int32_t r = 0; r < ranks; ++r) all.push_back(job.script.sim_job().life_of(r)->node);
  return all;
}

}  // namespace

TEST_CASE("exceptions on two ranks with different clocks: one is the cause, the other is listed",
          "[simulated][scenario]") {
  std::uint64_t both = 0;
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .max_restarts = 0}};
    REQUIRE(job.script.run_until([&] { return job.script.steps_of(1) == 1; }));
    // The clock of rank 2 runs at a third of the speed of that of rank 1.
    job.script.in().skew(job.script.sim_job().life_of(1)->node, 500);
    job.script.in().skew(job.script.sim_job().life_of(2)->node, -500);
    std::vector<std::int32_t> thrown;
    job.at_hook = [&](const learner_context& who, const hook& h) {
      if (who.rank == 0 || !h.is<hooks::on_train_batch_start>() || where(h).step != 5) return;
      thrown.push_back(who.rank);
      throw std::domain_error("rank " + std::to_string(who.rank));
    };
    const auto& end = job.script.run();
    REQUIRE(end.failed_with);
    const auto& first = end.failed_with->record;
    CHECK(first.what == "rank " + std::to_string(first.rank));
    CHECK(first.step == 5);
    std::set<std::string> reported{first.what};
    for (const auto& other : first.others) reported.insert(other.what);
    for (const auto rank : thrown) CHECK(reported.contains("rank " + std::to_string(rank)));
    both += static_cast<std::uint64_t>(thrown.size() == 2);
  }
  CHECK(both > 0);
}

TEST_CASE("a hook never ends: at its limit its rank is named and replaced",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    const auto stuck = static_cast<std::int32_t>(seed % 3);
    REQUIRE(job.until(stuck, "backward", 4));
    job.script.sim_job().life_of(stuck)->slow_per_cent = 100'000'000'000;
    REQUIRE(job.until(kind::generation_active, 2));
    CHECK(job.script.in().time() < job_spec{}.hook_limit + seconds{5});
    const auto& end = job.ends_well(2);
    const auto& why = *end.generations[0].ended_by;
    CHECK(why.kind == failure_kind::deadline);
    CHECK(why.rank == stuck);
    CHECK_FALSE(why.hook.empty());
  }
}

TEST_CASE("a rank is killed in the same step again and again: the budget ends the job",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .max_restarts = 4}};
    std::vector<nanoseconds> deaths;
    for (int i = 0; i < 5; ++i) {
      REQUIRE(job.until(1, "on_train_batch_start", 5));
      job.script.crash(1);
      deaths.push_back(job.script.in().time());
    }
    const auto& first = job.fails(4);
    CHECK(first.rank == 1);
    CHECK(first.kind == failure_kind::signal);
    // Generations without a committed step follow each other more and more slowly.
    CHECK(deaths[4] - deaths[3] > deaths[2] - deaths[1]);
    CHECK(deaths[4] < seconds{5});
  }
}

TEST_CASE("a report of a step is lost: the rank is asked again, and no step is done twice",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    const auto lost = job.script.hold<step_done>(
        static_cast<std::int32_t>(seed % 3),
        [](const step_done& m) { return m.at.step.value() == restarting_job::steps; });
    job.ends_well(1);
    CHECK(lost->caught());
    for (std::int64_t s = 1; s <= restarting_job::steps; ++s) CHECK(job.times(s, 1) == 1);
  }
}

TEST_CASE("an order and a report arrive ten seconds late: they change nothing",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    const auto report =
        job.script.hold<step_done>(2, [](const step_done& m) { return m.at.step.value() == 4; });
    const auto order = job.script.hold<close_generation>(0);
    REQUIRE(job.until(1, "on_train_batch_start", 6));
    job.script.crash(1);
    REQUIRE(job.until(kind::generation_active, 2));
    CHECK(report->caught());
    const auto refused = job.script.marks_hit(coverage_point::fence_refused);
    const auto node = job.script.sim_job().life_of(0)->node;
    job.script.in().pause(node, job.script.in().time() + milliseconds{100});
    job.script.in().at(0, seconds{10}, [] {});
    job.script.release(report);
    if (order->caught()) job.script.release(order);
    CHECK(job.ends_as_reference().restarts >= 1);
    CHECK(job.script.marks_hit(coverage_point::fence_refused) > refused);
  }
}

// As after Ctrl-Z. The pause is shorter than the limits of a hook and of a collective, which are
// times of the monotonic clock.
TEST_CASE("all processes stop for ten seconds and go on: no rank is removed",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(static_cast<std::int32_t>(seed % 3), "backward", 5));
    const auto wakes = job.script.in().time() + seconds{10};
    for (const auto node : nodes_of(job, restarting_job::ranks)) job.script.in().pause(node, wakes);
    job.ends_well(1);
    CHECK(job.script.in().time() > wakes);
  }
}

TEST_CASE("all processes stop for longer than a start may take: no rank is removed",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(kind::rank_started, 1));
    const auto wakes = job.script.in().time() + seconds{20};
    for (const auto node : nodes_of(job, restarting_job::ranks)) job.script.in().pause(node, wakes);
    job.ends_well(1);
    CHECK(job.script.in().time() > wakes);
  }
}

TEST_CASE("heartbeats are late on a machine without free cores: no rank is removed",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(0, "on_train_batch_start", 1));
    for (const auto node : nodes_of(job, restarting_job::ranks)) {
      job.script.in().late_timers(node, milliseconds{80});
      job.script.in().slow(node, milliseconds{1});
    }
    job.ends_well(1);
  }
}

TEST_CASE("a thousand ranks start at once, and all but one die at once: the last one is enough",
          "[simulated][scenario]") {
  constexpr std::int32_t ranks = 1000;
  script_options how;
  how.cluster.compute = milliseconds{5};
  scripted_simulation script{how};
  job_spec what{.ranks = ranks, .steps = 4, .samples = 4 * ranks, .width = 1};
  what.batch_size = 1;
  what.max_restarts = 1;
  script.train(what);
  REQUIRE(script.run_until([&] { return script.steps_of(7) == 2; }));
  for (std::int32_t r = 0; r < ranks; ++r)
    if (r != 7) script.crash(r);
  const auto& end = script.run();
  if (!end.ok()) FAIL(render(end.failed_with->record));
  CHECK(end.generations.size() == 2);
  CHECK(end.generations[1].base_step == 2);
  CHECK(script.weights() == script.reference_weights());
  CHECK(script.in().time() < seconds{10});
  script.settle();
  CHECK(script.in().actors() == 0);
}

TEST_CASE("the data are no multiple of the batch of all ranks: each sample is consumed once",
          "[simulated][scenario]") {
  struct shape {
    std::int32_t ranks;
    std::int64_t batch;
    std::int64_t samples;
    std::int64_t accumulate;
  };
  // One rank; a remainder; less data than one batch of all ranks; less data than ranks.
  for (const auto s : {shape{1, 2, 7, 1}, shape{3, 2, 7, 1}, shape{3, 4, 10, 2}, shape{4, 8, 5, 1},
                       shape{5, 1, 3, 1}}) {
    INFO(s.ranks << " ranks, " << s.batch << " samples each of " << s.samples);
    job_spec what{.ranks = s.ranks, .steps = 9, .samples = s.samples, .batch_size = s.batch};
    what.accumulate = s.accumulate;
    what.max_restarts = 2;
    std::map<std::int64_t, piece> consumed;
    script_options how;
    how.stepped = [&](const finished_step& f) { consumed[f.step] = f.consumed; };
    scripted_simulation script{how};
    script.train(what);
    REQUIRE(script.run_until([&] { return script.steps_of(0) == 4; }));
    script.crash(s.ranks - 1);
    const auto& end = script.run();
    if (!end.ok()) FAIL(render(end.failed_with->record));
    CHECK(script.weights() == script.reference_weights());
    std::int64_t next = 0;
    std::int64_t all = 0;
    for (const auto& [step, of] : consumed) {
      CHECK(of.first == next);
      next = (of.first + of.count) % s.samples;
      all += of.count;
    }
    CHECK(consumed.size() == 9);
    CHECK(end.loop.samples == all);
  }
}

TEST_CASE("a transferred chunk of the state is damaged: it is found, and the job goes on",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    int sent = 0;
    damaged_job job{seed, true, [&](const learner_context&, const hook& h) {
                      return h.is<hooks::restore_state>() && ++sent == 2;  // 1: the header
                    }};
    REQUIRE(job.script.run_until([&] { return job.has(1, 5); }));
    job.script.crash(1);
    const auto& end = job.ends(2);
    CHECK(sent > 2);
    CHECK_THAT(end.generations[1].ended_by->what, Catch::Contains("damaged"));
  }
}

TEST_CASE("one rank's sum is damaged: at the next restart it receives the state of the majority",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < scenario_seeds; ++seed) {
    INFO("seed " << seed);
    const auto odd = static_cast<std::int32_t>(seed % 3);
    bool flipped = false;
    damaged_job job{seed, false, [&, odd](const learner_context& who, const hook& h) {
                      return who.rank == odd && h.is<hooks::backward>() && where(h).step == 4 &&
                             !std::exchange(flipped, true);
                    }};
    REQUIRE(job.script.run_until(
        [&] { return job.has(0, 5) && job.has(1, 5) && job.has(2, 5) && job.has(3, 5); }));
    CHECK(job.digests[{1, 5, odd}] != job.reference.digest_after(5));
    job.script.crash(3);
    job.ends(1);
    CHECK(job.digests[{2, restarting_job::steps, odd}] ==
          job.reference.digest_after(restarting_job::steps));
  }
}
