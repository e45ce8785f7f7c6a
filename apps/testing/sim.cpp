#include "troupe/testing.hpp"

namespace troupe::testing {

run_plan swarm_of(std::string_view faults) {
  run_plan plan;
  plan.faults.may = fault_set::parse(faults);
  return plan;
}

run_report run(const job_spec& what, const run_plan& plan, std::uint64_t seed) {
  auto reference = reference_of(what);
  return run_job(what, plan, choices::of_seed(seed), reference);
}

network_cost hosts_of(std::uint32_t ranks, wire inside, wire between) {
  const auto cost = [](const wire& w) { return wire_cost{w.alpha, 1 / w.gigabytes_per_second}; };
  return {cost(between), ranks, cost(inside)};
}

std::string report(const exploration& of) {
  if (of.clean()) return {};
  const auto& what = of.variants.front();
  auto reference = reference_of(what.job);
  auto small = shrink(case_of(of.violating.front(), what), reference);
  small.what.plan.simulation.record = true;
  const auto again = replay(small, reference);
  return render_unrepeated(of.violating.front(), again) +
         render(again,
                "troupe simulate --replay CASE, or parse_case(text, plan) where it says `brings`; "
                "CASE is") +
         to_text(small);
}

}  // namespace troupe::testing
