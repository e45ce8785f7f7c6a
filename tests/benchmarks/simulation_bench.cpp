// How fast the simulated world runs, on one core: complete small runs with faults on, and
// deliveries of a wide world. Prints figures, asserts nothing.
#include <cstdio>
#include <cstdlib>

#include "apps/testing/explore.hpp"

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
  report("8 ranks, 20 steps, no faults", explore(small, plan, of));
  plan.faults.may = fault_set::all();
  report("8 ranks, 20 steps, swarms of faults", explore(small, plan, of));
  if (wide < 1) return 0;
  field_job large;
  large.ranks = wide;
  large.samples = 6 * static_cast<std::int64_t>(wide);
  large.width = 2;
  plan.faults.may = fault_set::none();
  of.runs = 1;
  report("one wide world, 20 steps", explore(large, plan, of));
  return 0;
}
