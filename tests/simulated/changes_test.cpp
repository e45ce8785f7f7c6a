// Goal: jobs in the simulator change their processes without a failure: processes leave, the
// operator scales, spares take the ranks of lost processes, and other faults occur meanwhile.
#include "apps/testing/case.hpp"
#include "apps/testing/scripted_simulation.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr job_spec four_ranks{.ranks = 4, .steps = 12, .max_restarts = 3};

exploration explored(const char* faults, std::uint64_t runs) {
  run_plan plan;
  plan.faults.may = fault_set::parse(faults);
  plan.faults.swarm = false;
  return explore(four_ranks, plan, {.runs = runs});
}

}  // namespace

TEST_CASE("processes leave and are scaled, without another fault: no restart, no step again",
          "[simulated][changes][campaign]") {
  const auto r = explored("leave, scale", 150);
  for (const auto& v : r.violating) UNSCOPED_INFO(to_text(case_of(v, r.variants.front())));
  CHECK(r.clean());
  CHECK(r.met("leave"));
  CHECK(r.met("scale"));
  CHECK(r.met("ranks left their process without a failure"));
  CHECK(r.met("the number of processes was changed"));
  CHECK(r.met("a rank moves to another process"));
  CHECK(r.met("all ranks that hold the state would move, and one of them stays"));
  CHECK(r.met("a change of the membership is refused"));
  CHECK(r.met("a spare takes the ranks of another process"));
}

TEST_CASE("processes leave and others are lost: every oracle holds",
          "[simulated][changes][campaign]") {
  const auto r = explored("leave, scale, crash_rank, stop", 200);
  for (const auto& v : r.violating) UNSCOPED_INFO(to_text(case_of(v, r.variants.front())));
  CHECK(r.clean());
  CHECK(r.met("a failure closes a generation that was to change"));
  CHECK(r.met("a stop replaces a change of the membership"));
  CHECK(r.met("ranks of a process go to the processes that are left"));
}

TEST_CASE("readers of links are slow: messages wait, and every oracle holds",
          "[simulated][changes][campaign]") {
  const auto r = explored("slow_reader", 150);
  for (const auto& v : r.violating) UNSCOPED_INFO(to_text(case_of(v, r.variants.front())));
  CHECK(r.clean());
  CHECK(r.met("slow_reader"));
  CHECK(r.met("a snapshot that waits in a link is replaced by a newer one"));
  CHECK(r.met("an observation is dropped before a slow link"));
  CHECK(r.met("a link is lost because its queue is full"));
}

TEST_CASE("processes of several ranks: each gets its share, on the hosts of the model",
          "[simulated][changes]") {
  scripted_simulation s{{.cluster = {.ranks_per_host = 2}}};
  auto job = four_ranks;
  job.processes = 3;
  job.spares = 1;
  s.train(job);
  REQUIRE(s.run_until([&] { return s.steps_of(3) == 2; }));
  const auto node = [&](std::int32_t rank) { return s.sim_job().life_of(rank)->node; };
  CHECK(node(0) == node(1));
  CHECK(node(1) != node(2));
  CHECK(node(2) != node(3));
  CHECK(s.in().host_of(node(2)) == s.in().host_of(node(1)));
  CHECK(s.in().host_of(node(3)) != s.in().host_of(node(1)));
  REQUIRE(s.sim_job().idle_processes().size() == 1);  // the spare
  const auto spare = s.sim_job().idle_processes().front();

  REQUIRE(s.sim_job().life_of(0)->process->leave());
  REQUIRE(s.run_until([&] { return node(0) == spare->node() && s.steps_of(0) > 3; }));
  const auto& end = s.run();
  CHECK(end.status == job_outcome::ending::finished);
  CHECK(s.weights() == s.reference_weights());
  CHECK(end.restarts == 0);
  REQUIRE(end.generations.size() == 2);
  CHECK(end.generations[0].changed == membership_change::left);
  CHECK(end.generations[1].steps_redone == 0);
}

// The host of a process dies before the process has sent anything, so nothing reports its end.
TEST_CASE("a process that never starts is replaced when its generation does not form",
          "[simulated][changes]") {
  for (const bool spare : {false, true}) {
    INFO((spare ? "it was a spare" : "it was there at the beginning"));
    scripted_simulation s;
    auto job = four_ranks;
    job.spares = spare ? 1 : 0;
    job.max_restarts = 2;
    s.train(job);
    if (spare) {
      REQUIRE(s.run_until([&] { return s.sim_job().idle_processes().size() == 1; }));
      s.sim_job().idle_processes().front()->die(true);
      REQUIRE(s.run_until([&] { return s.steps_of(0) == 2; }));
      s.crash(0);
    } else {
      REQUIRE(s.run_until([&] { return s.sim_job().life_of(0) != nullptr; }));
      s.crash(0, true);
    }
    const auto& end = s.run();
    INFO((end.failed_with ? render(end.failed_with->record) : "it has not failed"));
    CHECK(end.status == job_outcome::ending::finished);
    CHECK(end.restarts == (spare ? 2 : 1));
    CHECK(s.weights() == s.reference_weights());
  }
}

TEST_CASE("a job ends while a rank starts in a process with another rank: that one is not killed",
          "[simulated][changes]") {
  scripted_simulation s;
  auto job = four_ranks;
  job.on_loss = elastic_options::loss::shrink;
  job.max_restarts = 1;
  s.train(job);
  const auto process = [&](std::int32_t rank) { return s.sim_job().life_of(rank)->process; };
  REQUIRE(s.run_until([&] { return s.steps_of(0) == 2; }));
  s.crash(3);
  REQUIRE(s.run_until([&] { return process(3) == process(0); }));
  s.crash(1);  // before rank 3 has received anything
  const auto& end = s.run();
  REQUIRE(end.failed_with);
  CHECK(end.failed_with->record.rank == 1);
  CHECK(end.failed_with->record.kind == failure_kind::signal);
  for (const auto& other : end.failed_with->record.others) CHECK(other.rank != 0);
  CHECK(end.survivors.empty());
}
