// Goal: every interleaving of three ranks with one fault, and of two ranks with two, ends well.
#include "troupe/testing/exhaustive.hpp"

#include "tests/support/catch.hpp"

using namespace troupe::testing;

TEST_CASE("three ranks, two steps, one fault: the exhaustive search is complete", "[exhaust]") {
  const auto report = exhaust({});
  if (report.violation) FAIL(report.violation->what << "\n" << report.violation->chart);
  WARN(report.summary());
  CHECK(report.complete);
  CHECK(report.endings.at("finished") == 1);
}

TEST_CASE("two ranks, two steps, two faults: the exhaustive search is complete", "[exhaust]") {
  exhaustive_options two;
  two.ranks = 2;
  two.budget = 2;
  const auto report = exhaust(two);
  if (report.violation) FAIL(report.violation->what << "\n" << report.violation->chart);
  WARN(report.summary());
  CHECK(report.complete);
}

TEST_CASE("three ranks, two steps, one fault, one restart: the search is complete", "[exhaust]") {
  exhaustive_options one;
  one.restarts = 1;
  const auto report = exhaust(one);
  if (report.violation) FAIL(report.violation->what << "\n" << report.violation->chart);
  WARN(report.summary());
  CHECK(report.complete);
  CHECK(report.endings.count("failed after vanishes") == 0);
}

TEST_CASE("three ranks, two steps, two killed ranks, one restart: the search is complete",
          "[exhaust]") {
  exhaustive_options killed;
  killed.budget = 2;
  killed.restarts = 1;
  killed.faults = {small_fault::vanishes};
  const auto report = exhaust(killed);
  if (report.violation) FAIL(report.violation->what << "\n" << report.violation->chart);
  WARN(report.summary());
  CHECK(report.complete);
  CHECK(report.endings.at("finished after vanishes after vanishes") > 0);
}

TEST_CASE("two ranks, two steps, two faults, one restart: the search is complete", "[exhaust]") {
  exhaustive_options two;
  two.ranks = 2;
  two.budget = 2;
  two.restarts = 1;
  const auto report = exhaust(two);
  if (report.violation) FAIL(report.violation->what << "\n" << report.violation->chart);
  WARN(report.summary());
  CHECK(report.complete);
}
