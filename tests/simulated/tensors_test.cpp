// Goal: LibTorch in a simulated world: every schedule and every fault ends in the bits of the
// serial reference executor, the same seed is the same run, and a NaN goes where it goes.
#include "apps/testing/sim.hpp"
#include "apps/testing/tensors/tensors_payload.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

field_job small_job() {
  field_job what;
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

TEST_CASE("tensors end in the reference's bits under every schedule", "[simulated][tensors]") {
  tensors_options options;
  options.optimizer = GENERATE("sgd", "adamw");
  const auto all = campaign(fault_set::none(), 1, 16, options);
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.attempts == all.runs);
  CHECK(all.checks > all.runs * 3 * 8);
}

TEST_CASE("tensors survive faults to the bit", "[simulated][tensors]") {
  const auto all = campaign(fault_set::all(), 100, 40);
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.marks.at("resumed from a checkpoint") > 0);
  CHECK(all.faults[static_cast<std::size_t>(fault::crash_rank)] > 0);
}

namespace {

// Trains one job and expects another one's bits.
class crossed final : public payload {
public:
  std::string_view name() const override { return "crossed"; }
  bool waits() const override { return true; }
  std::shared_ptr<payload_job> of(const field_job& what) override {
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
    std::optional<std::uint64_t> digest_behind(std::int64_t steps) override {
      return expected->digest_behind(steps);
    }
    std::optional<difference> compare(const snapshot& is, std::int64_t steps) override {
      return expected->compare(is, steps);
    }
    std::shared_ptr<payload_job> trained, expected;
  };
  std::shared_ptr<payload> tensors_ = tensors_payload();
};

}  // namespace

TEST_CASE("other bits are told apart, with step, parameter and element", "[simulated][tensors]") {
  auto what = small_job();
  what.steps = 3;  // few: a report keeps the first sixteen
  auto reference = reference_of(what);
  run_plan plan;
  plan.payload = std::make_shared<crossed>();
  const auto report = run_field(what, plan, choices::of_seed(1), reference);
  REQUIRE(!report.violations.empty());
  CHECK(report.violations.front().oracle == "state equals the reference");
  CHECK(report.violations.front().step == 1);
  const auto& end = report.violations.back();
  CHECK(end.oracle == "the end equals the fault-free one");
  CHECK(end.step == 3);
  CHECK(end.parameter == "net.1.weight");
  CHECK(end.element == 0);
}

TEST_CASE("the same seeds are the same tensors", "[simulated][tensors]") {
  const auto once = campaign(fault_set::all(), 7, 8);
  CHECK(campaign(fault_set::all(), 7, 8).trace_digest == once.trace_digest);
}

TEST_CASE("a NaN in one rank's loss is in all ranks' weights, and stops nobody",
          "[simulated][tensors]") {
  tensors_options options;
  options.nan = tensors_options::poison{1, 4};
  const auto poisoned = campaign(fault_set::none(), 1, 1, options);
  INFO(report(poisoned));
  CHECK(poisoned.clean());  // the run finishes
  // Had it gone unnoticed, the weights would be those of a healthy run.
  auto reference = reference_of(small_job());
  run_plan plan;
  plan.payload = tensors_payload(options);
  const auto sick = run_field(small_job(), plan, choices::of_seed(1), reference);
  plan.payload = tensors_payload();
  const auto healthy = run_field(small_job(), plan, choices::of_seed(1), reference);
  CHECK(sick.finished);
  CHECK(sick.weights_digest.size() == healthy.weights_digest.size());
  CHECK(sick.weights_digest != healthy.weights_digest);
}
