// Goal: three ranks, two steps, one fault of any kind: every interleaving ends well.
#include "apps/testing/exhaustive/exhaust.hpp"

#include "tests/support/catch.hpp"

using namespace troupe::testing;

TEST_CASE("three ranks, two steps, one fault: complete", "[exhaust]") {
  const auto report = exhaust({});
  if (report.violation) FAIL(report.violation->what << "\n" << report.violation->chart);
  WARN(report.summary());
  CHECK(report.complete);
  CHECK(report.endings.at("finished") == 1);
}
