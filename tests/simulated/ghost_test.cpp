// Goal: ghosts: the production actors without numbers. A wide world ends in time and in virtual
// time as its costs say; faults are survived as by the field payload.
#include "apps/testing/explore.hpp"
#include "apps/testing/ghost_payload.hpp"
#include "backends/simulated/ghost_learner.hpp"
#include "troupe/testing.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::vector<violation> nothing;  // printed when it is something

}  // namespace

TEST_CASE("a thousand ghosts train to their end under every schedule", "[simulated][ghost]") {
  const auto what = ghost_job(1000, 5);
  auto plan = ghost_plan(what);
  plan.world.schedule = GENERATE(scheduling::fifo, scheduling::random, scheduling::pct);
  const auto report = run(what, plan);
  CHECK(report.violations == nothing);
  CHECK(report.finished);
  CHECK(report.attempts == 1);
  // An answer of the lane and a finished step, of every rank and step.
  CHECK(report.deliveries > 2 * 1000 * 5);
}

namespace {

// Until the job has ended, in virtual time, undisturbed.
nanoseconds time_of(std::int64_t steps, nanoseconds compute, std::uint64_t gradient_bytes,
                    std::uint64_t buckets) {
  world in{choices::of_seed(1), {.schedule = scheduling::fifo}};
  rehearsal stage{in, {.compute = compute}};
  ghost_options ghosts;
  ghosts.samples = 16 * 100;
  ghosts.gradient_bytes = gradient_bytes;
  ghosts.bucket_bytes = gradient_bytes / buckets;
  job what;
  what.options = ghost_job(16, steps).options();
  what.recipe = std::make_shared<ghost_recipe>(ghosts);
  stage.begin(std::move(what));
  for (std::uint64_t limit = 0; !stage.ended() && in.step() && limit < 1'000'000; ++limit) continue;
  REQUIRE(stage.ended());
  REQUIRE(stage.outcome()->ok());
  CHECK(stage.outcome()->loop.steps == steps);
  return in.time();
}

nanoseconds step_of(nanoseconds compute, std::uint64_t gradient_bytes, std::uint64_t buckets = 1) {
  return (time_of(60, compute, gradient_bytes, buckets) -
          time_of(40, compute, gradient_bytes, buckets)) /
         20;
}

nanoseconds cost_of(std::uint64_t gradient_bytes) {
  collective_call call;
  call.what = collective::all_reduce;
  call.type = dtype::f32;
  call.count = gradient_bytes / 4;
  return network_cost{}.of(call, 16);
}

}  // namespace

TEST_CASE("a step of ghosts takes what its parts cost", "[simulated][ghost]") {
  using namespace std::chrono_literals;
  const auto base = step_of(50ms, 1 << 20);
  CHECK(base > 50ms + cost_of(1 << 20));
  CHECK(step_of(80ms, 1 << 20) - base == 30ms);
  CHECK(step_of(50ms, 8 << 20) - base == cost_of(8 << 20) - cost_of(1 << 20));
  // Buckets go over the wire one after the other.
  CHECK(step_of(50ms, 4 << 20, 4) - base == 3 * cost_of(1 << 20));
}

TEST_CASE("an attempt of ghosts may take what its reductions take", "[simulated][ghost]") {
  const auto what = ghost_job(16, 150);
  auto plan = ghost_plan(what);
  plan.payload = ghost_payload(std::uint64_t{8} << 30, std::uint64_t{8} << 30);
  const auto report = run(what, plan);
  CHECK(report.violations == nothing);
  CHECK(report.finished);
  CHECK(report.attempts == 1);
  CHECK(report.virtual_time > 150 * cost_of(std::uint64_t{8} << 30));
}

TEST_CASE("ghosts survive faults and are resumed", "[simulated][ghost]") {
  auto what = ghost_job(12, 20);
  what.checkpoint_every = 4;
  what.detect = std::chrono::milliseconds{500};
  what.hook_limit = std::chrono::seconds{20};
  auto plan = ghost_plan(what);
  plan.faults.may = fault_set::all();
  budget of;
  of.first_seed = 1;
  of.runs = 120;
  const auto all = explore(what, plan, of);
  INFO(troupe::testing::report(all));
  CHECK(all.clean());
  CHECK(all.marks.at("resumed from a checkpoint") > 0);
}

TEST_CASE("ghosts under swarms of faults have equal twins", "[simulated][ghost][twins]") {
  const auto what = ghost_job(6, 12);
  auto plan = ghost_plan(what);
  plan.faults.may = fault_set::all();
  const auto all = explore(what, plan, {.first_seed = 1, .runs = 24, .twins = true});
  for (const auto& r : all.violating)
    for (const auto& v : r.violations) UNSCOPED_INFO("seed " << r.seed << ": " << v);
  CHECK(all.clean());
  CHECK(all.twins == 24);
}
