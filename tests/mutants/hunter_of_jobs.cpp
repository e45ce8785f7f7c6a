// Hunts in jobs without LibTorch: the exhaustive searches, and swarms of jobs that train integers.
#include <stdexcept>
#include <string>

#include "apps/testing/exhaustive/checkpoint_search.hpp"
#include "tests/mutants/hunter.hpp"
#include "troupe/testing/exhaustive.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

std::optional<finding> search_all(exhaustive_options options, double seconds) {
  options.ranks = 2;
  options.seconds_max = 10 * seconds;  // these searches are complete long before
  const auto report = exhaust(options);
  if (!report.violation && !report.complete)
    throw std::runtime_error("the search ended at its bound: " + report.bound);
  if (!report.violation) return {};
  return finding{std::to_string(report.states) + " states", report.violation->what};
}

// Every schedule of two ranks with any one fault.
std::optional<finding> one_fault(double seconds, std::uint64_t) { return search_all({}, seconds); }

// Every schedule of two ranks with any two of these faults.
std::optional<finding> two_faults(double seconds, std::uint64_t) {
  exhaustive_options options;
  options.budget = 2;
  options.faults = {small_fault::throws, small_fault::stops, small_fault::loses,
                    small_fault::early_deadline};
  return search_all(options, seconds);
}

// Every schedule of two ranks that may restart once, with any one fault, then with any two of
// exceptions, vanished ranks, stops and lost messages.
std::optional<finding> restarts(double seconds, std::uint64_t) {
  exhaustive_options options;
  options.restarts = 1;
  if (auto found = search_all(options, seconds)) return found;
  options.budget = 2;
  options.faults = {small_fault::throws, small_fault::vanishes, small_fault::stops,
                    small_fault::loses};
  return search_all(options, seconds);
}

// Every order of checkpoints of two steps, after three of another run, with one failure or two
// generations, with and without a best one to keep.
std::optional<finding> checkpoints(double, std::uint64_t) {
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
    if (report.violation)
      return finding{std::to_string(report.states) + " states", *report.violation};
  }
  return {};
}

// The portfolio of schedules of whole jobs under swarms of faults.
std::optional<finding> swarm(double seconds, std::uint64_t first_seed) {
  job_spec job;
  job.ranks = 4;
  return search_swarm(job, {}, first_seed, seconds * 2 / 3);
}

// The same for jobs that may restart three times.
std::optional<finding> healing(double seconds, std::uint64_t first_seed) {
  job_spec job;
  job.ranks = 4;
  job.max_restarts = 3;
  return search_swarm(job, {}, first_seed, seconds * 2 / 3);
}

// The same with an observer that gets the rows of metrics.
std::optional<finding> rows(double seconds, std::uint64_t first_seed) {
  job_spec job;
  job.ranks = 4;
  job.max_restarts = 3;
  run_plan plan;
  plan.observer = test_observer::receives;
  return search_swarm(job, plan, first_seed, seconds * 2 / 3);
}

}  // namespace

int main(int count, char** arguments) {
  return hunt({{"one_fault", one_fault},
               {"two_faults", two_faults},
               {"restarts", restarts},
               {"checkpoints", checkpoints},
               {"swarm", swarm},
               {"healing", healing},
               {"rows", rows}},
              count, arguments);
}
