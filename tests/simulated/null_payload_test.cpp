// Goal: the null payload: production actors without numbers. A wide job ends within the virtual
// time of its costs, and faults are survived as with integers.
#include "apps/testing/null_payload.hpp"
#include "apps/testing/explore.hpp"
#include "backends/simulated/null_learner.hpp"
#include "troupe/testing.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::vector<violation> nothing;  // printed when not empty

}  // namespace

TEST_CASE("a thousand null learners finish under every schedule", "[simulated][null]") {
  const auto what = null_payload_job(1000, 5);
  auto plan = null_payload_plan(what);
  plan.simulation.schedule = GENERATE(scheduling::fifo, scheduling::random, scheduling::pct);
  const auto report = run(what, plan);
  CHECK(report.violations == nothing);
  CHECK(report.finished);
  CHECK(report.attempts == 1);
  // One answer of the lane and one finished step per rank and step.
  CHECK(report.deliveries > 2 * 1000 * 5);
}

namespace {

// Virtual time of an undisturbed job.
nanoseconds time_of(std::int64_t steps, nanoseconds compute, std::uint64_t gradient_bytes,
                    std::uint64_t buckets) {
  simulation in{choices::of_seed(1), {.schedule = scheduling::fifo}};
  simulated_job sim_job{in, {.compute = compute}};
  null_options null_payloads;
  null_payloads.samples = 16 * 100;
  null_payloads.gradient_bytes = gradient_bytes;
  null_payloads.bucket_bytes = gradient_bytes / buckets;
  job what;
  what.options = null_payload_job(16, steps).options();
  what.recipe = std::make_shared<null_recipe>(null_payloads);
  sim_job.begin(std::move(what));
  for (std::uint64_t limit = 0; !sim_job.ended() && in.step() && limit < 1'000'000; ++limit)
    continue;
  REQUIRE(sim_job.ended());
  REQUIRE(sim_job.outcome()->ok());
  CHECK(sim_job.outcome()->loop.steps == steps);
  return in.time();
}

nanoseconds step_of(nanoseconds compute, std::uint64_t gradient_bytes, std::uint64_t buckets = 1) {
  return (time_of(60, compute, gradient_bytes, buckets) -
          time_of(40, compute, gradient_bytes, buckets)) /
         20;
}

nanoseconds cost_of(std::uint64_t gradient_bytes) {
  collective_call call;
  call.what = collective_kind::all_reduce;
  call.type = dtype::f32;
  call.count = gradient_bytes / 4;
  return network_cost{}.of(call, 16);
}

}  // namespace

TEST_CASE("the time of a step is the cost of its parts", "[simulated][null]") {
  using namespace std::chrono_literals;
  const auto base = step_of(50ms, 1 << 20);
  CHECK(base > 50ms + cost_of(1 << 20));
  CHECK(step_of(80ms, 1 << 20) - base == 30ms);
  CHECK(step_of(50ms, 8 << 20) - base == cost_of(8 << 20) - cost_of(1 << 20));
  // Buckets use the wire one after the other.
  CHECK(step_of(50ms, 4 << 20, 4) - base == 3 * cost_of(1 << 20));
}

TEST_CASE("the time limit of an attempt includes its reductions", "[simulated][null]") {
  const auto what = null_payload_job(16, 150);
  auto plan = null_payload_plan(what);
  plan.payload = null_payload(std::uint64_t{8} << 30, std::uint64_t{8} << 30);
  const auto report = run(what, plan);
  CHECK(report.violations == nothing);
  CHECK(report.finished);
  CHECK(report.attempts == 1);
  CHECK(report.virtual_time > 150 * cost_of(std::uint64_t{8} << 30));
}

TEST_CASE("a job with the null payload survives faults and is resumed", "[simulated][null]") {
  auto what = null_payload_job(12, 20);
  what.checkpoint_every = 4;
  what.detect = std::chrono::milliseconds{500};
  what.hook_limit = std::chrono::seconds{20};
  auto plan = null_payload_plan(what);
  plan.faults.may = fault_set::all();
  budget of;
  of.first_seed = 1;
  of.runs = 120;
  const auto all = explore(what, plan, of);
  INFO(troupe::testing::report(all));
  CHECK(all.clean());
  CHECK(all.marks.at("resumed from a checkpoint") > 0);
}

TEST_CASE("jobs with the null payload run identically in a disturbed host",
          "[simulated][null][determinism]") {
  const auto what = null_payload_job(6, 12);
  auto plan = null_payload_plan(what);
  plan.faults.may = fault_set::all();
  const auto all = explore(what, plan, {.first_seed = 1, .runs = 24, .determinism_checks = true});
  for (const auto& r : all.violating)
    for (const auto& v : r.violations) UNSCOPED_INFO("seed " << r.seed << ": " << v);
  CHECK(all.clean());
  CHECK(all.determinism_checks == 24);
}

TEST_CASE("a job with the null payload restarts: each sample of a committed step once",
          "[simulated][restart][campaign]") {
  const auto job = [] {
    auto made = null_payload_job(6, 20);
    made.max_restarts = 3;
    return made;
  }();
  auto plan = null_payload_plan(job);
  plan.faults.may = fault_set::parse("crash_rank");
  plan.faults.swarm = false;
  const auto r = explore(job, plan, {.runs = 60, .portfolio = false, .vary_job = false});
  CHECK(r.held("each sample once"));
  CHECK(r.held("steps are one chain"));
  CHECK(r.held("a step is the same on all ranks"));
  CHECK(r.met("a generation followed another"));
  REQUIRE(r.generations.size() > 1);
}
