// The whole of troupe::testing but the exhaustive search, for tests: `namespace sim =
// troupe::testing;`. docs/testing.md is the tutorial.
#pragma once

#include <string>
#include <string_view>

#include "apps/testing/case.hpp"
#include "apps/testing/chart.hpp"
#include "apps/testing/explore.hpp"
#include "apps/testing/extension.hpp"
#include "apps/testing/null_payload.hpp"
#include "apps/testing/scripted_simulation.hpp"

namespace troupe::testing {

/// A plan in which each run draws its faults from these: `crash_rank, pause, storage_torn`, or
/// `all`. Throws user_error (bad_usage) that names those there are.
run_plan swarm_of(std::string_view faults);

/// One run.
run_report run(const job_spec& what, const run_plan& plan, std::uint64_t seed = 1);

/// A network of nodes of so many ranks: what a message costs inside of one, and between two.
struct wire {
  nanoseconds alpha{0};
  double gigabytes_per_second = 1;
};
network_cost hosts_of(std::uint32_t ranks, wire inside, wire between);

/// What is wrong with the first run that violates, shrunk: its report, a chart, and the case to
/// paste. Empty when nothing is. Costs up to a few hundred runs.
std::string report(const exploration& of);

}  // namespace troupe::testing
