// Goal: bugs planted in the production machines and actors (messages/planted.hpp) are found by the
// standard budget, and nothing is found where none is planted. A program of its own;
// tests/mutants.sh runs it once per bug.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "apps/testing/exhaustive/checkpoint_search.hpp"
#include "apps/testing/exhaustive/exhaust.hpp"
#include "apps/testing/explore.hpp"
#include "messages/planted.hpp"

#ifndef TROUPE_PLANT_BUGS
#error "mutants are compiled with the planted bugs in"
#endif

using namespace troupe;
using namespace troupe::testing;

namespace {

struct finding {
  std::string by;  // strategy
  std::uint64_t runs = 0;
  double seconds = 0;
  std::string what;
  std::uint64_t seed = 0;
};

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  constexpr std::size_t enough = 100;
  return text.substr(0, enough);
}

// Every schedule of two ranks with any one fault, or with any two of some that go well together.
std::optional<finding> search_all(std::uint32_t faults, double seconds) {
  exhaustive_options options;
  options.ranks = 2;
  options.budget = faults;
  options.seconds_max = seconds;
  if (faults > 1)
    options.faults = {small_fault::throws, small_fault::stops, small_fault::loses,
                      small_fault::early_deadline};
  const auto report = exhaust(options);
  if (!report.violation) return {};
  return finding{"exhaustive(" + std::to_string(faults) + ")", report.states, report.seconds,
                 one_line(report.violation->what)};
}

// Every order of checkpoints of two steps, behind three of another run, with one failure or two
// generations.
std::optional<finding> search_checkpointing() {
  const auto began = std::chrono::steady_clock::now();
  for (const std::uint32_t failures : {0, 1}) {
    checkpoint_search what;
    what.steps = 2;
    what.past = 3;
    what.resumed = 1;
    what.failures = failures;
    what.generations = 2 - failures;
    const auto report = search_checkpoints(what);
    if (!report.violation) continue;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    return finding{"checkpoints", report.states, took.count(), one_line(*report.violation)};
  }
  return {};
}

// The portfolio of schedules of whole field jobs under swarms of faults.
std::optional<finding> search_swarm(std::uint64_t first_seed, double seconds) {
  field_job job;
  job.ranks = 4;
  run_plan plan;
  plan.faults.may = fault_set::all();
  plan.events_limit = 200'000;  // a hundred times what a run takes
  budget of;
  of.first_seed = first_seed;
  of.runs = 1'000'000'000;
  of.seconds = seconds;
  const auto all = explore(job, plan, of);
  if (all.clean()) return {};
  const auto& first = all.violating.front();
  const auto how = variant_of(job, plan, of, first.seed).plan.world;
  auto by = std::string{to_string(how.schedule)};
  if (how.schedule == scheduling::pct) by += "(" + std::to_string(how.depth) + ")";
  const auto& v = first.violations.front();
  return finding{by, all.runs, all.seconds, one_line(v.oracle + ": " + v.text), first.seed};
}

std::string cell(const std::optional<finding>& found) {
  if (!found) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%s %llu, %.2f s", found->by.c_str(),
                static_cast<unsigned long long>(found->runs), found->seconds);
  return text;
}

int run(const planted_bug& what, double seconds, std::uint64_t first_seed) {
  planted_now = what.which;
  auto exhaustive = search_all(1, seconds / 6);
  if (!exhaustive) exhaustive = search_checkpointing();
  // What the exhaustive search has found need not be looked for as long.
  const auto swarm = search_swarm(first_seed, exhaustive ? seconds / 10 : seconds * 2 / 3);
  if (!exhaustive && !swarm) exhaustive = search_all(2, seconds / 6);
  planted_now = bug::none;
  const auto& first = swarm ? swarm : exhaustive;
  std::printf("%-8s %-25s | %-28s | %-28s | %s\n", first ? "killed" : "SURVIVED",
              std::string{what.name}.c_str(), cell(exhaustive).c_str(), cell(swarm).c_str(),
              first ? first->what.c_str() : std::string{what.text}.c_str());
  return first ? 0 : 1;
}

int run_clean(double seconds, std::uint64_t first_seed) {
  auto found = search_all(1, seconds / 6);
  if (!found) found = search_all(2, seconds / 6);
  if (!found) found = search_checkpointing();
  if (!found) found = search_swarm(first_seed, seconds * 2 / 3);
  if (found) {
    std::printf("ALARM    nothing is planted, and %s (seed %llu) finds: %s\n", cell(found).c_str(),
                static_cast<unsigned long long>(found->seed), found->what.c_str());
    return 1;
  }
  std::printf("clean    nothing is planted, nothing is found in %.0f s\n", seconds);
  return 0;
}

}  // namespace

// Usage: mutants list | mutants NAME|none [SECONDS [FIRST_SEED]]
int main(int count, char** arguments) {
  const std::string_view what = count > 1 ? arguments[1] : "list";
  const double seconds = count > 2 ? std::atof(arguments[2]) : 60;
  const auto seed = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1;
  if (what == "list") {
    for (const auto& b : planted_bugs) std::printf("%s\n", std::string{b.name}.c_str());
    return 0;
  }
  if (what == "none") return run_clean(seconds, seed);
  for (const auto& b : planted_bugs)
    if (b.name == what) return run(b, seconds, seed);
  std::fprintf(stderr, "there is no planted bug \"%s\"; `mutants list` names them\n",
               std::string{what}.c_str());
  return 2;
}
