// Goal: campaigns of jobs under schedules and faults. No oracle is violated, equal seeds give equal
// campaigns, and recorded choices replay a run.
#include "troupe/testing.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

exploration campaign(fault_set may, std::uint64_t first, std::uint64_t runs,
                     std::int32_t ranks = 4) {
  job_spec what;
  what.ranks = ranks;
  run_plan plan;
  plan.faults.may = may;
  budget of;
  of.first_seed = first;
  of.runs = runs;
  return explore(what, plan, of);
}

}  // namespace

TEST_CASE("without faults a job finishes in one attempt under every schedule",
          "[simulated][campaign]") {
  const auto all = campaign(fault_set::none(), 1, 100);
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.runs == 100);
  CHECK(all.attempts == 100);
}

TEST_CASE("jobs survive each kind of fault", "[simulated][campaign]") {
  for (std::size_t f = 0; f < fault_kinds; ++f) {
    fault_set only;
    only.add(static_cast<fault>(f));
    INFO(only.text());
    const auto all = campaign(only, 1000 + 100 * f, 40);
    INFO(report(all));
    CHECK(all.clean());
  }
}

TEST_CASE("jobs survive swarms of faults", "[simulated][campaign]") {
  const auto all = campaign(fault_set::all(), 1, 300);
  INFO(report(all));
  CHECK(all.clean());
}

TEST_CASE("equal seeds give equal campaigns", "[simulated][campaign]") {
  const auto once = campaign(fault_set::all(), 50, 40);
  CHECK(campaign(fault_set::all(), 50, 40).trace_digest == once.trace_digest);
  CHECK(campaign(fault_set::all(), 51, 40).trace_digest != once.trace_digest);
}

TEST_CASE("a misspelt oracle or coverage point: the error lists the known ones", "[simulated]") {
  const auto all = campaign(fault_set::none(), 1, 1);
  CHECK_THROWS_WITH(all.held("each sample onec"),
                    Catch::Contains("unknown oracle \"each sample onec\"") &&
                        Catch::Contains("each sample once") && Catch::Contains("clean()"));
  CHECK_THROWS_WITH(all.met("resumed from checkpoint"),
                    Catch::Contains("unknown coverage point or fault") &&
                        Catch::Contains("resumed from a checkpoint") &&
                        Catch::Contains("crash_rank"));
}

TEST_CASE("pct of any depth that a case may name delays no message for hours",
          "[simulated][campaign]") {
  run_plan plan;
  plan.simulation = {.schedule = scheduling::pct, .depth = 1000, .horizon = 256};
  const auto all = explore({.ranks = 3, .steps = 5}, plan, {.runs = 10, .portfolio = false});
  INFO(report(all));
  CHECK(all.clean());
}

TEST_CASE("a job or a plan that no case can name is refused before the runs", "[simulated]") {
  run_plan plan;
  plan.faults.per_attempt = 20;
  CHECK_THROWS_WITH(explore({.ranks = 2}, plan, {.runs = 1}),
                    Catch::Contains("\"20\" is not within 0 .. 16: \"faults_per_attempt=20\""));
  CHECK_THROWS_WITH(explore({.ranks = 2, .hook_limit = std::chrono::hours{2}}, {}, {.runs = 1}),
                    Catch::Contains("hook_limit="));
}
