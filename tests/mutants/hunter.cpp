#include "tests/mutants/hunter.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/mutants/mutant.hpp"

namespace troupe::testing {

namespace {

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  constexpr std::size_t enough = 100;
  return text.substr(0, enough);
}

}  // namespace

std::optional<finding> search_swarm(const job_spec& job, const run_plan& plan,
                                    std::uint64_t first_seed, double seconds) {
  auto swarm = plan;
  swarm.faults.may = fault_set::all();
  swarm.events_limit = 200'000;  // a hundred times what a run takes
  budget of;
  of.first_seed = first_seed;
  of.runs = 1'000'000'000;
  of.seconds = seconds;
  const auto all = explore(job, swarm, of);
  if (all.clean()) return {};
  const auto& first = all.violating.front();
  const auto how = variant_of(job, swarm, of, first.seed).plan.simulation;
  auto by = std::string{to_string(how.schedule)};
  if (how.schedule == scheduling::pct) by += "(" + std::to_string(how.depth) + ")";
  by += " " + std::to_string(all.runs) + " runs, seed " + std::to_string(first.seed);
  const auto& v = first.violations.front();
  return finding{by, v.oracle + ": " + v.text};
}

int hunt(std::initializer_list<finder> finders, int count, char** arguments) {
  const auto named = [&](const finder& one) { return count > 1 && one.name == arguments[1]; };
  const auto* with = std::ranges::find_if(finders, named);
  if (with == finders.end() || count < 4) {
    std::fprintf(stderr, "usage: FINDER MUTANT|none SECONDS [FIRST_SEED]; finders here:");
    for (const auto& one : finders) std::fprintf(stderr, " %s", std::string{one.name}.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  if (std::string_view{arguments[2]} != "none") mutant_on = arguments[2];
  const auto seed = count > 4 ? std::strtoull(arguments[4], nullptr, 10) : 1;
  const auto began = std::chrono::steady_clock::now();
  const auto found = with->look(std::atof(arguments[3]), seed);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (found)
    std::printf("%s, %.1f s | %s\n", found->by.c_str(), took.count(),
                one_line(found->what).c_str());
  else
    std::printf("nothing in %.1f s\n", took.count());
  return found ? 1 : 0;
}

}  // namespace troupe::testing
