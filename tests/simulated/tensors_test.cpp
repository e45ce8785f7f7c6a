// Goal: LibTorch in a simulation. Every schedule and every fault ends in the bits of the serial
// reference executor; equal seeds give equal runs, in another host, too; NaNs spread as in the
// reference; a module of the user is checked in the same way.
#include "troupe/testing/tensors.hpp"
#include "tests/simulated/branching.hpp"
#include "troupe/testing.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

job_spec small_job() {
  job_spec what;
  what.ranks = 3;
  what.steps = 8;
  what.samples = 34;
  what.checkpoint_every = 3;
  return what;
}

exploration campaign(fault_set may, std::uint64_t first, std::uint64_t runs,
                     tensors_options options = {}) {
  run_plan plan;
  plan.payload = tensors_payload(std::move(options));
  plan.faults.may = may;
  budget of;
  of.first_seed = first;
  of.runs = runs;
  return explore(small_job(), plan, of);
}

}  // namespace

TEST_CASE("tensors end with the reference's bits under every schedule", "[simulated][tensors]") {
  tensors_options options;
  options.optimizer = GENERATE("sgd", "adamw");
  const auto all = campaign(fault_set::none(), 1, 16, options);
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.attempts == all.runs);
  CHECK(all.checks > all.runs * 3 * 8);
}

TEST_CASE("tensors end with the reference's bits under faults", "[simulated][tensors]") {
  const auto all = campaign(fault_set::all(), 100, 40);
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.marks.at("resumed from a checkpoint") > 0);
  CHECK(all.faults[static_cast<std::size_t>(fault::crash_rank)] > 0);
  CHECK(all.faults[static_cast<std::size_t>(fault::not_a_number)] > 0);
}

namespace {

// Trains one job and expects the bits of another.
class crossed final : public payload {
public:
  std::string_view name() const override { return "crossed"; }
  bool waits() const override { return true; }
  std::shared_ptr<payload_job> of(const job_spec& what) override {
    auto other = what;
    ++other.seed;
    return std::make_shared<job_of_two>(tensors_->of(what), tensors_->of(other));
  }

private:
  struct job_of_two final : payload_job {
    job_of_two(std::shared_ptr<payload_job> a, std::shared_ptr<payload_job> b)
        : trained(std::move(a)), expected(std::move(b)) {}
    recipe_ptr recipe(payload_ground ground) const override {
      return trained->recipe(std::move(ground));
    }
    std::optional<std::uint64_t> digest_after(std::int64_t steps, const poisons& applied) override {
      return expected->digest_after(steps, applied);
    }
    std::optional<difference> compare(const snapshot& is, std::int64_t steps,
                                      const poisons& applied) override {
      return expected->compare(is, steps, applied);
    }
    std::shared_ptr<payload_job> trained, expected;
  };
  std::shared_ptr<payload> tensors_ = tensors_payload();
};

}  // namespace

TEST_CASE("a difference is reported with step, parameter and element", "[simulated][tensors]") {
  auto what = small_job();
  what.steps = 3;  // few, because a report keeps the first sixteen violations
  auto reference = reference_of(what);
  run_plan plan;
  plan.payload = std::make_shared<crossed>();
  const auto report = run_job(what, plan, choices::of_seed(1), reference);
  REQUIRE(!report.violations.empty());
  CHECK(report.violations.front().oracle == "state equals the reference");
  CHECK(report.violations.front().step == 1);
  const auto& end = report.violations.back();
  CHECK(end.oracle == "the end equals the fault-free one");
  CHECK(end.step == 3);
  CHECK(end.parameter == "net.1.weight");
  CHECK(end.element == 0);
}

TEST_CASE("equal seeds give equal tensors", "[simulated][tensors]") {
  const auto once = campaign(fault_set::all(), 7, 8);
  CHECK(campaign(fault_set::all(), 7, 8).trace_digest == once.trace_digest);
}

namespace {

run_report run_with(fault_set may, std::uint64_t seed, const job_spec& what) {
  run_plan plan;
  plan.payload = tensors_payload();
  plan.faults.may = may;
  plan.faults.swarm = false;
  plan.faults.fault_per_million = 1'000'000;
  auto reference = reference_of(what);
  return run_job(what, plan, choices::of_seed(seed), reference);
}

constexpr auto nans = static_cast<std::size_t>(fault::not_a_number);

}  // namespace

TEST_CASE("NaN in one rank's gradient: all ranks' weights have it, and training goes on",
          "[simulated][tensors]") {
  const auto healthy = run_with(fault_set::none(), 1, small_job());
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    const auto sick = run_with(fault_set::none().add(fault::not_a_number), seed, small_job());
    INFO("seed " << seed);
    CHECK(sick.violations == std::vector<violation>{});
    CHECK(sick.finished);
    CHECK(sick.attempts == 1);
    REQUIRE(sick.faults[nans] > 0);
    CHECK(sick.weights_digest != healthy.weights_digest);
  }
}

TEST_CASE("a run resumed after a NaN keeps it; a run resumed before it is healthy",
          "[simulated][tensors]") {
  run_plan plan;
  plan.payload = tensors_payload();
  plan.faults.may = fault_set::parse("not_a_number,crash_rank,power_loss,storage_torn");
  const auto all = explore(small_job(), plan, {.first_seed = 1, .runs = 60});
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.faults[nans] > 10);
  CHECK(all.marks.at("resumed from a checkpoint") > 10);
}

TEST_CASE("a user's module with every supported feature equals the reference",
          "[simulated][tensors]") {
  run_plan plan;
  plan.payload = tensors_payload(branching_module({.adam = GENERATE(false, true)}));
  plan.faults.may = fault_set::all();
  auto what = small_job();
  what.ranks = 4;  // so that some ranks are idle in the last batch
  const auto all = explore(what, plan, {.first_seed = 1, .runs = 16});
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.marks.at("resumed from a checkpoint") > 0);

  what.samples = 51;
  CHECK_THROWS_WITH(explore(what, plan, {.runs = 1}),
                    Catch::Contains("has 50 samples") && Catch::Contains("trains 51"));
}

namespace {

run_report run_module(const tensors_options& options) {
  run_plan plan;
  plan.payload = tensors_payload(options);
  auto expected = reference_of(small_job());
  return run_job(small_job(), plan, choices::of_seed(1), expected);
}

}  // namespace

TEST_CASE("a module that differs from the reference is reported", "[simulated][tensors]") {
  auto options = branching_module({.by_rank = true});
  CHECK(run_module(options).violations == std::vector<violation>{});
  options.reference = true;
  const auto compared = run_module(options);
  REQUIRE_FALSE(compared.violations.empty());
  CHECK(compared.violations.front().oracle == "state equals the reference");
}

TEST_CASE("a module that reads the environment in its lane's thread is found",
          "[simulated][tensors][guard]") {
  const auto caught = run_module(branching_module({.asks_environment = true}));
  REQUIRE_FALSE(caught.violations.empty());
  CHECK(caught.violations.front().oracle == "only ports reach outside");
  CHECK(caught.violations.front().text.find("rank 1 called getenv") == 0);
}

TEST_CASE("jobs with tensors run identically in a disturbed host",
          "[simulated][tensors][determinism]") {
  run_plan plan;
  plan.payload = tensors_payload();
  plan.faults.may = fault_set::all();
  const auto all =
      explore(small_job(), plan, {.first_seed = 1, .runs = 12, .determinism_checks = true});
  for (const auto& r : all.violating)
    for (const auto& v : r.violations) UNSCOPED_INFO("seed " << r.seed << ": " << v);
  CHECK(all.clean());
  CHECK(all.determinism_checks == 12);
}
