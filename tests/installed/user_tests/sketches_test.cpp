// Goal: what docs/testing.md teaches, as a project of a user's would write it, against the
// installed package.
#include <troupe/testing/exhaustive/exhaust.hpp>
#include <troupe/testing/sim.hpp>

#include <catch2/catch.hpp>

namespace sim = troupe::testing;

// (a) A whole job, swarms of faults, the same end to the bit.
TEST_CASE("training survives any crash schedule", "[sim]") {
  const sim::field_job job{.ranks = 8, .steps = 60, .checkpoint_every = 10};
  const auto faults = sim::swarm_of(
      "crash_rank, crash_supervisor, power_loss, pause, cut, one_way_cut, slow, lose, repeat, "
      "storage_torn");
  const auto r = sim::explore(job, faults, {.runs = 80, .seconds = 20});

  INFO(sim::report(r));  // empty when nothing is wrong
  CHECK(r.held("the end equals the fault-free one"));
  CHECK(r.held("each sample once"));
  CHECK(r.held("a healed job finishes"));
  CHECK(r.met("resumed from a checkpoint"));  // a test that never meets its fault proves nothing
  REQUIRE(r.clean());
}

// (b) One interleaving, by hand: a word of a dead rank is refused.
TEST_CASE("a word of a dead incarnation is ignored", "[sim][scripted]") {
  sim::scene s{{.seed = 7}};
  s.train({.ranks = 3, .steps = 20, .checkpoint_every = 2});

  const auto late =
      s.hold<troupe::step_done>(2, [](const auto& m) { return m.at.step.value() == 7; });
  REQUIRE(s.run_until([&] { return late->caught(); }));  // it is on the wire
  s.crash(2);
  CHECK(s.run().failed_with->record.rank == 2);

  s.train_again();  // as an operator would: a new supervisor, new incarnations
  REQUIRE(s.run_until([&] { return s.steps_of(2) == 8; }));
  const auto refused = s.marks_hit(troupe::mark::fence_refused);
  s.release_to(late, s.supervisor());
  const auto& end = s.run();
  CHECK(s.marks_hit(troupe::mark::fence_refused) == refused + 1);
  CHECK(end.status == troupe::job_outcome::ending::finished);
  CHECK(end.loop.steps == 20);
  CHECK(s.weights() == s.reference_weights());
}

// (c) Every interleaving of three ranks, with a throw at every place.
TEST_CASE("an exception reaches the caller exactly once", "[sim][exhaustive]") {
  sim::exhaustive_options small{.ranks = 3, .steps = 2, .faults = {sim::small_fault::throws}};
  std::uint64_t failed = 0;
  small.end_must = [&](const troupe::supervision::complete& end) -> std::string {
    if (end.status != troupe::job_outcome::ending::failed) return {};
    ++failed;
    if (!end.first) return "it failed without a first cause";
    return end.survivors.empty() ? "" : "somebody is left";
  };
  const auto r = sim::exhaust(small);
  INFO(r.summary() << (r.violation ? r.violation->what + '\n' + r.violation->chart : ""));
  CHECK(failed > 0);
  REQUIRE(r.complete);
}

// (d) What a slow rank costs.
TEST_CASE("one slow rank costs what the model says", "[sim][scale]") {
  const auto seconds_of = [](std::int64_t per_cent) {
    sim::scene s;
    s.train({.ranks = 64, .steps = 50, .samples = 1000});
    REQUIRE(s.run_until([&] { return s.stage().life_of(17) != nullptr; }));
    s.stage().life_of(17)->slow_per_cent = per_cent;
    REQUIRE(s.run().ok());
    return static_cast<double>(s.in().time().count()) / 1e9;
  };
  CHECK(seconds_of(130) / seconds_of(100) == Approx(1.3).margin(0.05));
}
