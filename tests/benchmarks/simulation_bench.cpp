// How fast the simulated world runs, on one core: complete small runs with faults on, and
// deliveries of a wide world of ghosts. Prints figures, asserts nothing. Arguments: small runs (0:
// none), wide world's ranks (0: none) and steps.
#include <cstdio>
#include <cstdlib>

#include "apps/testing/explore.hpp"
#include "apps/testing/ghost_payload.hpp"

using namespace troupe::testing;

namespace {

void report(const char* what, const exploration& all) {
  std::printf("%-34s %6llu runs %8.0f runs/s %10.0f deliveries/s %10.0f events/s %zu violations\n",
              what, static_cast<unsigned long long>(all.runs),
              static_cast<double>(all.runs) / all.seconds,
              static_cast<double>(all.deliveries) / all.seconds,
              static_cast<double>(all.events) / all.seconds, all.violating.size());
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
  if (runs > 0) report("8 ranks, 20 steps, no faults", explore(small, plan, of));
  plan.faults.may = fault_set::all();
  if (runs > 0) report("8 ranks, 20 steps, swarms of faults", explore(small, plan, of));
  if (wide < 1) return 0;
  const auto steps = count > 3 ? std::atoi(arguments[3]) : 100;
  const auto large = ghost_job(wide, steps);
  plan = ghost_plan(large);
  plan.world.schedule = scheduling::fifo;
  of.portfolio = false;
  of.runs = 1;
  report("one wide world of ghosts", explore(large, plan, of));
  return 0;
}
