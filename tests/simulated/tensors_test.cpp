// Goal: LibTorch in a simulated world: every schedule and every fault ends in the bits of the
// serial reference executor, the same seed is the same run, and a NaN goes where it goes.
#include "apps/testing/tensors/tensors_payload.hpp"

#include <sstream>

#include "apps/testing/explore.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

std::string text_of(const exploration& e) {
  std::ostringstream out;
  for (const auto& r : e.violating) {
    out << "seed " << r.seed << ", " << r.attempts << " attempts\n";
    for (const auto& v : r.violations) out << "  " << v << '\n';
  }
  return out.str();
}

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
  INFO(text_of(all));
  CHECK(all.clean());
  CHECK(all.attempts == all.runs);
  CHECK(all.checks > all.runs * 3 * 8);
}

TEST_CASE("tensors survive faults to the bit", "[simulated][tensors]") {
  const auto all = campaign(fault_set::all(), 100, 40);
  INFO(text_of(all));
  CHECK(all.clean());
  CHECK(all.marks.at("resumed from a checkpoint") > 0);
  CHECK(all.faults[static_cast<std::size_t>(fault::crash_rank)] > 0);
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
  INFO(text_of(poisoned));
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
