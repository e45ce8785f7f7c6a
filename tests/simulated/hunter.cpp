#include "tests/simulated/hunter.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace troupe::testing {

namespace {

std::string cell(const std::optional<finding>& found) {
  if (!found) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%s %llu, %.2f s", found->by.c_str(),
                static_cast<unsigned long long>(found->runs), found->seconds);
  return text;
}

int hunt_one(const hunter& with, const planted_bug& what, double seconds, std::uint64_t seed) {
  planted_now = what.which;
  const auto found = with.hunt(true, seconds, seed);
  planted_now = bug::none;
  const auto& first = found.swarm ? found.swarm : found.exhaustive;
  std::printf("%-8s %-25s | %-28s | %-28s | %s\n", first ? "killed" : "SURVIVED",
              std::string{what.name}.c_str(), cell(found.exhaustive).c_str(),
              cell(found.swarm).c_str(),
              first ? first->what.c_str() : std::string{what.text}.c_str());
  return first ? 0 : 1;
}

int hunt_nothing(const hunter& with, double seconds, std::uint64_t seed) {
  const auto all = with.hunt(false, seconds, seed);
  if (const auto& found = all.exhaustive ? all.exhaustive : all.swarm) {
    std::printf("ALARM    nothing is planted, and %s (seed %llu) finds: %s\n", cell(found).c_str(),
                static_cast<unsigned long long>(found->seed), found->what.c_str());
    return 1;
  }
  std::printf("clean    nothing is planted, nothing is found in %.0f s\n", seconds);
  return 0;
}

}  // namespace

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  constexpr std::size_t enough = 100;
  return text.substr(0, enough);
}

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
  const auto& v = first.violations.front();
  return finding{by, all.runs, all.seconds, one_line(v.oracle + ": " + v.text), first.seed};
}

int hunt(const hunter& with, int count, char** arguments) {
  const std::string_view what = count > 1 ? arguments[1] : "list";
  const double seconds = count > 2 ? std::atof(arguments[2]) : 60;
  const auto seed = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1;
  if (what == "list") {
    for (const auto& b : with.bugs) std::printf("%s\n", std::string{b.name}.c_str());
    return 0;
  }
  if (what == "none") return hunt_nothing(with, seconds, seed);
  for (const auto& b : with.bugs)
    if (b.name == what) return hunt_one(with, b, seconds, seed);
  std::fprintf(stderr, "there is no planted bug \"%s\"; `list` names them\n",
               std::string{what}.c_str());
  return 2;
}

}  // namespace troupe::testing
