// Goal: checkpoints keep their properties whatever the order of offered snapshots, committed steps,
// generations and storage answers, with a failing operation or a crash at every point. Method: an
// exhaustive search. The ctest mutants_search shows that the search finds bugs.
#include "apps/testing/exhaustive/checkpoint_search.hpp"

#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

checkpoint_search_report all_of(const checkpoint_search& what) {
  auto report = search_checkpoints(what);
  if (report.violation) FAIL(*report.violation);
  CHECK(report.complete);
  return report;
}

checkpoint_search two_steps(std::uint32_t failures, std::uint32_t generations) {
  checkpoint_search what;
  what.steps = 2;
  what.failures = failures;
  what.generations = generations;
  return what;
}

}  // namespace

TEST_CASE("one failing operation: all properties of checkpoints hold", "[exhaust][checkpoint]") {
  const auto report = all_of(two_steps(1, 1));
  CHECK(report.states > 1000);
  CHECK(report.crashes > 30'000);
  CHECK(report.ends > 100);
}

TEST_CASE("a new generation repeats uncommitted steps, or falls back: all properties hold",
          "[exhaust][checkpoint]") {
  CHECK(all_of(two_steps(0, 2)).states > 500);
}

TEST_CASE("a resumed run removes later checkpoints only after it has written one",
          "[exhaust][checkpoint]") {
  auto what = two_steps(0, 1);
  what.past = 2;
  what.resumed = GENERATE(0, 1, 2);
  CHECK(all_of(what).resumes > 50);
}

TEST_CASE("without failures and crashes the search has few states", "[exhaust][checkpoint]") {
  auto what = two_steps(0, 1);
  what.steps = 1;
  what.crashes = false;
  const auto report = all_of(what);
  CHECK(report.crashes == 0);
  CHECK(report.ends >= 2);  // committed in time or not
}

TEST_CASE("options beyond the search's limits are refused", "[exhaust][checkpoint]") {
  checkpoint_search what;
  what.states_max = 10;
  CHECK_FALSE(search_checkpoints(what).complete);
  what.steps = 7;
  CHECK_THROWS_AS(search_checkpoints(what), user_error);
  what.steps = 1;
  what.resumed = 1;
  CHECK_THROWS_AS(search_checkpoints(what), user_error);
}
