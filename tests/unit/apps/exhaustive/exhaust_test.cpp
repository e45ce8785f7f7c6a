// Goal: every interleaving of a small job ends well, with every fault at every place. The search
// visits all states and reports a violation where there is one. Method: the search itself, with and
// without its reduction.
#include "troupe/testing/exhaustive.hpp"

#include "troupe/failure.hpp"

#include <algorithm>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

exhaustive_options small_options(std::int32_t ranks, std::vector<small_fault> faults,
                                 std::uint32_t budget = 1) {
  exhaustive_options o;
  o.ranks = ranks;
  o.faults = std::move(faults);
  o.budget = budget;
  return o;
}

exhaustive_report complete(const exhaustive_options& o) {
  auto report = exhaust(o);
  INFO(report.summary());
  if (report.violation) FAIL(report.violation->what << "\n" << report.violation->chart);
  REQUIRE(report.complete);
  return report;
}

}  // namespace

TEST_CASE("without faults a job has one final state", "[exhaust]") {
  for (const std::int32_t ranks : {1, 2, 3}) {
    auto o = small_options(ranks, {});
    o.end_must = [](const supervision::complete& end) {
      return end.loop.steps == 2 && end.survivors.empty() && end.late.empty() ? ""
                                                                              : "not like this";
    };
    for (const bool fine : {false, true}) {
      o.one_hook_per_run = fine;
      const auto report = complete(o);
      CHECK(report.ends == 1);
      CHECK(report.endings == std::map<std::string, std::uint64_t>{{"finished", 1}});
    }
  }
}

TEST_CASE("a job of two ranks ends correctly with any fault at any moment", "[exhaust]") {
  const auto what = GENERATE(from_range(small_faults()));
  INFO(to_string(what));
  for (const bool fine : {false, true}) {
    auto o = small_options(2, {what});
    o.one_hook_per_run = fine;
    const auto report = complete(o);
    CHECK(report.endings.at("finished") == 1);
    CHECK(report.ends > 1);
  }
}

TEST_CASE("a stop ends the job after a step, unless the job has finished before", "[exhaust]") {
  const auto report = complete(small_options(2, {small_fault::stops}));
  CHECK(report.endings.at("stopped after stops") > 0);
  CHECK(report.endings.at("finished after stops") > 0);
  CHECK(report.endings.size() == 3);
}

TEST_CASE("a job of one rank ends correctly with any fault", "[exhaust]") {
  complete(small_options(1, small_faults(), 2));
}

TEST_CASE("a job of two ranks that restarts ends like the undisturbed one", "[exhaust]") {
  for (const bool fine : {false, true}) {
    auto o = small_options(2, small_faults());
    o.restarts = 1;
    o.one_hook_per_run = fine;
    const auto report = complete(o);
    CHECK(report.endings.at("finished") == 1);
    CHECK(report.endings.at("finished after vanishes") > 1);
    CHECK(report.endings.at("finished after throws") > 1);
    CHECK(report.endings.count("failed after vanishes") == 0);
    CHECK(report.endings.count("failed after loses") == 0);
  }
}

TEST_CASE("a second fault fails a job with one restart, or is healed with the first", "[exhaust]") {
  auto o = small_options(2, {small_fault::vanishes}, 2);
  o.restarts = 1;
  const auto report = complete(o);
  CHECK(report.endings.at("failed after vanishes after vanishes") > 0);
  CHECK(report.endings.at("finished after vanishes after vanishes") > 0);
}

TEST_CASE("the search finds the same final states with and without reduction", "[exhaust]") {
  const auto compare = [](exhaustive_options o) {
    o.reduce = false;
    const auto all = complete(o);
    o.reduce = true;
    const auto reduced = complete(o);
    CHECK(all.ends == reduced.ends);
    CHECK(all.ends_digest == reduced.ends_digest);
    CHECK(all.endings == reduced.endings);
    CHECK(reduced.states < all.states);
    CHECK(reduced.symmetries == (o.ranks == 3 ? 6 : 2));
  };
  compare(small_options(2, {}));
  compare(small_options(3, {}));
  for (const auto what : small_faults()) {
    INFO(to_string(what));
    compare(small_options(2, {what}));
  }
  compare(small_options(2, {small_fault::throws, small_fault::stops}, 2));
  compare(small_options(2, {small_fault::vanishes, small_fault::loses}, 2));
  for (const auto what : {small_fault::stops, small_fault::vanishes, small_fault::loses})
    compare(small_options(3, {what}));
  for (const auto what : {small_fault::throws, small_fault::vanishes, small_fault::loses}) {
    auto restarts = small_options(2, {what});
    restarts.restarts = 1;
    compare(restarts);
    restarts.one_hook_per_run = true;
    compare(restarts);
  }
}

TEST_CASE("searches of single kinds and of pairs of kinds cover all runs with two faults",
          "[exhaust]") {
  const std::vector kinds{small_fault::throws, small_fault::stops, small_fault::loses};
  const auto ends = [](std::vector<small_fault> of, std::uint32_t budget, bool once) {
    auto o = small_options(2, std::move(of), budget);
    o.once = once;
    return complete(o).ends;
  };
  const auto none = ends(kinds, 0, false);
  const auto one = ends(kinds, 1, false) - none;  // fault
  std::uint64_t sum = 0;
  std::uint64_t searches = 0;
  for (std::size_t a = 0; a < kinds.size(); ++a)
    for (std::size_t b = a; b < kinds.size(); ++b, ++searches)
      sum += a == b ? ends({kinds[a]}, 2, false) : ends({kinds[a], kinds[b]}, 2, true);
  // Each search has the ends without a fault. Each kind is in as many searches as there are kinds.
  CHECK(sum - (searches - 1) * none - (kinds.size() - 1) * one == ends(kinds, 2, false));
}

TEST_CASE("a violation of one rank is found and shown for that rank", "[exhaust]") {
  for (const std::int32_t rank : {0, 1, 2}) {
    auto o = small_options(3, {small_fault::vanishes});
    o.end_must = [rank](const supervision::complete& end) {
      return end.first && end.first->rank == rank ? "this rank was lost" : "";
    };
    const auto report = exhaust(o);
    REQUIRE(report.violation);
    CHECK(report.violation->what == "this rank was lost");
    CHECK_THAT(report.violation->chart,
               Contains("FAULT       vanishes rank " + std::to_string(rank)));
    CHECK_THAT(report.violation->chart, Contains("first cause: rank " + std::to_string(rank)));
  }
}

TEST_CASE("a violation is reported with a shortest path to it", "[exhaust]") {
  auto o = small_options(2, {small_fault::stops, small_fault::throws});
  o.end_must = [](const supervision::complete& end) {
    return end.status == job_outcome::ending::stopped ? "an unwanted stop" : "";
  };
  const auto report = exhaust(o);
  CHECK_FALSE(report.complete);
  REQUIRE(report.violation);
  CHECK(report.violation->what == "an unwanted stop");
  CHECK_THAT(report.summary(), StartsWith("violation: an unwanted stop: "));
  const auto& chart = report.violation->chart;
  CHECK_THAT(chart, StartsWith("   1  "));
  CHECK_THAT(chart, Contains("FAULT       stops"));
  CHECK_THAT(chart, Contains("rank 1      gets: stop_at"));
  CHECK_THAT(chart, Contains("then\n  supervisor done generation 1"));
  CHECK(chart.find("FAULT       throws") == std::string::npos);
  CHECK_THAT(chart, Contains("\n" + std::string(report.depth < 100 ? "  " : " ") +
                             std::to_string(report.depth) + "  "));
}

TEST_CASE("a search that reaches a bound names it and is not complete", "[exhaust]") {
  auto o = small_options(3, {small_fault::throws});
  o.states_max = 20'000;
  const auto report = exhaust(o);
  CHECK_FALSE(report.complete);
  CHECK(report.bound == "20000 states");
  CHECK_THAT(report.summary(), StartsWith("not complete, stopped at 20000 states: "));
  o = small_options(3, {small_fault::throws});
  o.bytes_max = 1 << 20;
  CHECK(exhaust(o).bound == "1 MiB");
}

TEST_CASE("options outside of their ranges are refused", "[exhaust]") {
  auto o = small_options(5, {});
  CHECK_THROWS_WITH(exhaust(o), Contains("1 to 4"));
  o = small_options(0, {});
  CHECK_THROWS_AS(exhaust(o), user_error);
  o = small_options(2, {}, 3);
  CHECK_THROWS_WITH(exhaust(o), Contains("0 to 2"));
  o = small_options(2, {});
  o.steps = 9;
  CHECK_THROWS_WITH(exhaust(o), Contains("0 to 8"));
  o = small_options(2, {});
  o.restarts = 2;
  CHECK_THROWS_WITH(exhaust(o), Contains("0 or 1"));
}
