// How fast the simulated world runs, on one core: complete small runs with faults on, and
// deliveries of a wide world of ghosts. Prints figures per second of processor time, so that what
// else the machine does counts little, and asserts nothing. Arguments: small runs (0: none), wide
// world's ranks (0: none) and steps.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "apps/testing/explore.hpp"
#include "apps/testing/ghost_payload.hpp"

using namespace troupe::testing;

namespace {

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void report(const char* what, const field_job& job, const run_plan& plan, const budget& of) {
  const auto before = processor_seconds();
  const auto all = explore(job, plan, of);
  const auto seconds = processor_seconds() - before;
  const auto rate = [&](std::uint64_t count) { return static_cast<double>(count) / seconds; };
  std::printf(
      "%-34s %6llu runs %8.0f runs/s %10.0f deliveries/s %10.0f events/s %6.1f s processor "
      "(%.1f s wall) %zu violations\n",
      what, static_cast<unsigned long long>(all.runs), rate(all.runs), rate(all.deliveries),
      rate(all.events), seconds, all.seconds, all.violating.size());
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const auto runs = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 2000;
  const auto wide = count > 2 ? std::atoi(arguments[2]) : 10'000;
  field_job small;
  run_plan plan;
  budget of;
  of.runs = runs;
  of.violations = 1'000'000;
  of.vary_job = false;
  if (runs > 0) report("8 ranks, 20 steps, no faults", small, plan, of);
  plan.faults.may = fault_set::all();
  if (runs > 0) report("8 ranks, 20 steps, swarms of faults", small, plan, of);
  if (wide < 1) return 0;
  const auto steps = count > 3 ? std::atoi(arguments[3]) : 100;
  const auto large = ghost_job(wide, steps);
  plan = ghost_plan(large);
  plan.world.schedule = scheduling::fifo;
  of.portfolio = false;
  of.runs = 1;
  report("one wide world of ghosts", large, plan, of);
  return 0;
}
