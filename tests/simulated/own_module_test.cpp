// Goal: explore() with a module that cannot train every job. Only what the test allowed is varied,
// and an exception of the module in the reference is a violation with its seed and its case.
#include "tests/simulated/branching.hpp"
#include "troupe/testing.hpp"
#include "troupe/testing/tensors.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

run_plan plan_of_own(bool vary_samples) {
  run_plan plan;
  auto own = full_batch_module(2, 36);
  own.vary_samples = vary_samples;
  plan.payload = tensors_payload(std::move(own));
  return plan;
}

// 36 samples make six full batches of three ranks; two thirds of them plus one do not.
constexpr job_spec job_of_full_batches{
    .ranks = 3, .steps = 6, .samples = 36, .batch_size = 2, .checkpoint_every = 3};

}  // namespace

TEST_CASE("a user's data keeps its number of samples", "[simulated][tensors]") {
  const auto all = explore(job_of_full_batches, plan_of_own(false), {.first_seed = 1, .runs = 24});
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.runs == 24);
}

TEST_CASE("module throws in the reference: a violation with its seed and case",
          "[simulated][tensors]") {
  const auto plan = plan_of_own(true);
  const auto all = explore(job_of_full_batches, plan, {.first_seed = 1, .runs = 24});
  REQUIRE(all.violating.size() == 1);
  const auto& found = all.violating.front();
  CHECK(all.variants.front().job.samples == 25);
  CHECK(found.violations.front().oracle == exception_oracle);
  CHECK_THAT(found.violations.front().text,
             Catch::Contains("std::length_error") && Catch::Contains("a batch of another size"));
  CHECK_FALSE(all.held(exception_oracle));
  CHECK_THAT(report(all), Catch::Contains("seed " + std::to_string(found.seed)) &&
                              Catch::Contains("samples=25"));

  const auto text = to_text(case_of(found, all.variants.front()));
  CHECK_THROWS_WITH(parse_case(text), Catch::Contains("unknown payload \"own_tensors\""));
  const auto whole = parse_case(text, plan);
  auto reference = reference_of(whole.what.job);
  CHECK(replay(whole, reference).violations == found.violations);
}
