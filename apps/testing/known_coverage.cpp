#include "apps/testing/job_run.hpp"

namespace troupe::testing {

const std::vector<std::string>& known_marks() {
  static const auto all = [] {
    std::vector<std::string> names{"resumed from a checkpoint",
                                   "began again from nothing",
                                   "a damaged checkpoint was passed over",
                                   "the program was killed",
                                   "stopped at a step",
                                   "an ending with survivors",
                                   "a rank of an ended run stepped",
                                   "a rank that was replaced stepped",
                                   "a generation followed another",
                                   "ranks left their process without a failure",
                                   "the number of processes was changed",
                                   "committed steps were done again",
                                   "hooks called collectives"};
    for (const auto& m : coverage_points) names.emplace_back(m.text);
    return names;
  }();
  return all;
}

void add_marks(std::map<std::string, std::uint64_t>& to, const run_report& of) {
  for (const auto& [name, count] : of.marks) to[name] += count;
  for (const auto& m : coverage_points)
    if (const auto count = of.product[static_cast<std::size_t>(m.which)])
      to[std::string{m.text}] += count;
  for (const auto& own : of.own) to[std::string{own.what.text}] += own.times;
}

}  // namespace troupe::testing
