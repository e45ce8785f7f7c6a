// Goal: the search of a small company finds the bugs that are planted in its machines, and nothing
// where none is. Method: the machines compiled once more, with the bugs in (messages/planted.hpp);
// all of the bugs, and the campaigns that the others need: tests/mutants.sh.
#include "apps/testing/exhaustive/exhaust.hpp"
#include "messages/planted.hpp"

#include "tests/support/catch.hpp"

#ifndef TROUPE_PLANT_BUGS
#error "this test is compiled with the planted bugs in"
#endif

using namespace troupe;
using namespace troupe::testing;

namespace {

std::string found_with(bug which) {
  exhaustive_options options;
  options.ranks = 2;
  planted_now = which;
  const auto report = exhaust(options);
  planted_now = bug::none;
  if (report.violation) return report.violation->what;
  CHECK(report.complete);
  return {};
}

}  // namespace

TEST_CASE("a small company finds what is planted in its machines", "[exhaust][planted]") {
  CHECK(found_with(bug::none) == "");
  for (const auto which :
       {bug::commit_by_one, bug::last_cause_wins, bug::close_skips_a_rank, bug::stop_told_once,
        bug::vanished_rank_ignored, bug::teardown_forgotten, bug::closing_keeps_waiting}) {
    INFO(planted_bugs[static_cast<std::size_t>(which) - 1].name);
    CHECK(found_with(which) != "");
  }
}

TEST_CASE("each planted bug is listed at its own place", "[planted]") {
  for (std::size_t i = 0; i < std::size(planted_bugs); ++i)
    CHECK(static_cast<std::size_t>(planted_bugs[i].which) == i + 1);
}
