// Goal: bugs planted in the production machines and actors (messages/planted.hpp) are found by the
// standard budget, and nothing is found where none is planted. A program of its own, built with
// TROUPE_PLANT_BUGS only; tests/mutants.sh runs it once per bug.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "apps/testing/exhaustive/exhaust.hpp"
#include "apps/testing/explore.hpp"
#include "messages/planted.hpp"

#ifndef TROUPE_PLANT_BUGS
#error "mutants are for a build tree configured with -DTROUPE_PLANT_BUGS=ON"
#endif

using namespace troupe;
using namespace troupe::testing;

namespace {

struct finding {
  std::string by;  // strategy
  std::uint64_t runs = 0;
  double seconds = 0;
  std::string what;
};

budget of(std::uint64_t first, double seconds) {
  budget b;
  b.first_seed = first;
  b.runs = 1'000'000'000;
  b.seconds = seconds;
  return b;
}

run_plan with_faults() {
  run_plan plan;
  plan.faults.may = fault_set::all();
  return plan;
}

std::string one_line(const violation& v) {
  std::string text = v.oracle + ": " + v.text;
  for (auto& c : text)
    if (c == '\n') c = ' ';
  return text.substr(0, 110);
}

// The portfolio of schedules under swarms of faults, then the exhaustive search of a small company.
std::optional<finding> hunt(double seconds) {
  field_job job;
  job.ranks = 4;
  const auto plan = with_faults();
  const auto swarm = of(1, seconds * 3 / 4);
  const auto all = explore(job, plan, swarm);
  if (!all.clean()) {
    const auto& first = all.violating.front();
    const auto how = variant_of(job, plan, swarm, first.seed).plan.world;
    auto by = std::string{to_string(how.schedule)};
    if (how.schedule == scheduling::pct) by += "(" + std::to_string(how.depth) + ")";
    return finding{by, all.runs, all.seconds, one_line(first.violations.front())};
  }
  exhaustive_options small;
  small.ranks = 2;
  small.seconds_max = seconds - all.seconds;
  const auto searched = exhaust(small);
  if (searched.violation)
    return finding{"exhaustive", searched.states, all.seconds + searched.seconds,
                   searched.violation->what.substr(0, 110)};
  return {};
}

int run(const planted_bug& what, double seconds) {
  planted_now = what.which;
  const auto found = hunt(seconds);
  planted_now = bug::none;
  const auto name = std::string{what.name};
  if (!found) {
    std::printf("SURVIVED  %-25s %s\n", name.c_str(), std::string{what.text}.c_str());
    return 1;
  }
  std::printf("killed    %-25s by %-10s after %8llu runs, %6.2f s: %s\n", name.c_str(),
              found->by.c_str(), static_cast<unsigned long long>(found->runs), found->seconds,
              found->what.c_str());
  return 0;
}

int run_clean(double seconds) {
  if (const auto found = hunt(seconds)) {
    std::printf("ALARM     nothing is planted, and %s finds after %llu runs: %s\n",
                found->by.c_str(), static_cast<unsigned long long>(found->runs),
                found->what.c_str());
    return 1;
  }
  std::printf("clean     nothing is planted, nothing is found in %.0f s\n", seconds);
  return 0;
}

}  // namespace

// Usage: mutants list | mutants NAME SECONDS | mutants none SECONDS
int main(int count, char** arguments) {
  const std::string_view what = count > 1 ? arguments[1] : "list";
  const double seconds = count > 2 ? std::atof(arguments[2]) : 60;
  if (what == "list") {
    for (const auto& b : planted_bugs) std::printf("%s\n", std::string{b.name}.c_str());
    return 0;
  }
  if (what == "none") return run_clean(seconds);
  for (const auto& b : planted_bugs)
    if (b.name == what) return run(b, seconds);
  std::fprintf(stderr, "there is no planted bug \"%s\"; `mutants list` names them\n",
               std::string{what}.c_str());
  return 2;
}
