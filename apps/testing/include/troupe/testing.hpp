// The public header of troupe::testing without the exhaustive search: `namespace sim =
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

/// Makes a plan in which each run draws its faults from a list: `crash_rank, pause, storage_torn`,
/// or `all`. Throws user_error (bad_usage) that lists the known faults.
run_plan swarm_of(std::string_view faults);

/// Does one run.
run_report run(const job_spec& what, const run_plan& plan, std::uint64_t seed = 1);

/// Makes the cost of a network of hosts with so many ranks each: `inside` one host, and `between`
/// two.
struct wire {
  /// The latency of one message.
  nanoseconds alpha{0};
  /// In 10^9 bytes; above 0.
  double gigabytes_per_second = 1;
};
/// `ranks`: on each host.
network_cost hosts_of(std::uint32_t ranks, wire inside, wire between);

/// Shrinks the first run with a violation and returns its report, a chart and its case. Empty if no
/// run violates. Takes up to a few hundred runs.
std::string report(const exploration& of);

}  // namespace troupe::testing
