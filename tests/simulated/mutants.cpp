// Goal: bugs planted in the production machines and actors are found by the standard budget, and
// nothing is found where none is planted.
#include <chrono>
#include <string>

#include "apps/testing/exhaustive/checkpoint_search.hpp"
#include "tests/simulated/hunter.hpp"
#include "troupe/testing/exhaustive.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

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
// generations, with and without a best one to keep.
std::optional<finding> search_checkpointing() {
  const auto began = std::chrono::steady_clock::now();
  for (const std::uint32_t i : {0, 1, 2, 3}) {
    const auto failures = i / 2;
    checkpoint_search what;
    what.keep_best = i % 2 == 0 ? 1 : 0;
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
std::optional<finding> search_jobs(std::uint64_t first_seed, double seconds) {
  job_spec job;
  job.ranks = 4;
  return search_swarm(job, {}, first_seed, seconds);
}

found_by look(bool planted, double seconds, std::uint64_t first_seed) {
  found_by all;
  all.exhaustive = search_all(1, seconds / 6);
  if (!all.exhaustive && !planted) all.exhaustive = search_all(2, seconds / 6);
  if (!all.exhaustive) all.exhaustive = search_checkpointing();
  if (all.exhaustive && !planted) return all;
  // What the exhaustive search has found need not be looked for as long.
  all.swarm = search_jobs(first_seed, all.exhaustive ? seconds / 10 : seconds * 2 / 3);
  if (planted && !all.exhaustive && !all.swarm) all.exhaustive = search_all(2, seconds / 6);
  return all;
}

}  // namespace

int main(int count, char** arguments) { return hunt({planted_bugs, look}, count, arguments); }
