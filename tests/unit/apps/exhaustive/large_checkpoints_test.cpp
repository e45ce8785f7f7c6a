// Goal: that of checkpoint_search_test, with three steps, or a failure and two generations at once.
#include "apps/testing/exhaustive/checkpoint_search.hpp"

#include "tests/support/catch.hpp"

using namespace troupe::testing;

namespace {

void holds_everywhere(const checkpoint_search& what) {
  const auto report = search_checkpoints(what);
  if (report.violation) FAIL(*report.violation);
  WARN(report.states << " states, " << report.crashes << " crashes, " << report.resumes
                     << " resumes");
  CHECK(report.complete);
}

}  // namespace

TEST_CASE("all checkpoint properties hold for three steps, a failure and two generations",
          "[exhaust][checkpoint]") {
  checkpoint_search what;
  what.generations = 2;
  holds_everywhere(what);
}

TEST_CASE("all checkpoint properties hold for an abandoned branch and two generations",
          "[exhaust][checkpoint]") {
  checkpoint_search what;
  what.steps = 2;
  what.past = 3;
  what.resumed = 1;
  what.generations = 2;
  holds_everywhere(what);
}
