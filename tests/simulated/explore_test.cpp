// Goal: campaigns of field jobs under schedules and faults: no oracle is violated, the same seed is
// the same campaign, and a run is replayed by its recorded choices.
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

TEST_CASE("without faults every schedule ends in one attempt", "[simulated][campaign]") {
  const auto all = campaign(fault_set::none(), 1, 100);
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.runs == 100);
  CHECK(all.attempts == 100);
}

TEST_CASE("every fault by itself is survived", "[simulated][campaign]") {
  for (std::size_t f = 0; f < fault_kinds; ++f) {
    fault_set only;
    only.add(static_cast<fault>(f));
    INFO(only.text());
    const auto all = campaign(only, 1000 + 100 * f, 40);
    INFO(report(all));
    CHECK(all.clean());
  }
}

TEST_CASE("swarms of faults are survived", "[simulated][campaign]") {
  const auto all = campaign(fault_set::all(), 1, 300);
  INFO(report(all));
  CHECK(all.clean());
}

TEST_CASE("the same seeds are the same campaign", "[simulated][campaign]") {
  const auto once = campaign(fault_set::all(), 50, 40);
  CHECK(campaign(fault_set::all(), 50, 40).trace_digest == once.trace_digest);
  CHECK(campaign(fault_set::all(), 51, 40).trace_digest != once.trace_digest);
}
