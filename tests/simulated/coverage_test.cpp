// Goal: coverage points of product code report to the simulation whose event runs, and to no other.
// Rare paths are drawn, recorded, repeated and survived.
#include "troupe/detail/coverage.hpp"
#include "apps/testing/case.hpp"
#include "apps/testing/explore.hpp"
#include "apps/testing/job_oracles.hpp"
#include "troupe/failure.hpp"

#include <algorithm>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

run_plan with(fault_set may) {
  run_plan plan;
  plan.faults.may = may;
  return plan;
}

std::uint64_t count_of(const coverage_book& book, coverage_point which) {
  return book.counts()[static_cast<std::size_t>(which)];
}

std::string text_of(coverage_point which) {
  return std::string{coverage_points[static_cast<std::size_t>(which)].text};
}

}  // namespace

TEST_CASE("outside a simulation coverage points do nothing and a broken invariant throws",
          "[simulated][marks]") {
  CHECK_FALSE(rare(coverage_point::early_deadline));
  CHECK(sometimes(true, coverage_point::link_silent));
  CHECK_FALSE(sometimes(false, coverage_point::link_silent));
  always(true, coverage_point::commit_grows);
  CHECK_THROWS_AS(always(false, coverage_point::commit_grows), internal_error);
}

TEST_CASE("a coverage point reports to the simulation whose event runs", "[simulated][marks]") {
  simulation one{choices::of_seed(1), {}};
  simulation other{choices::of_seed(1), {}};
  one.at(0, nanoseconds{0}, [] { sometimes(true, coverage_point::link_silent); });
  other.at(0, nanoseconds{0}, [] { sometimes(false, coverage_point::link_silent); });
  while (one.step() || other.step()) sometimes(true, coverage_point::link_silent);
  CHECK(count_of(one.marks(), coverage_point::link_silent) == 1);
  CHECK(count_of(other.marks(), coverage_point::link_silent) == 0);
}

TEST_CASE("a broken invariant is reported although its exception was caught",
          "[simulated][marks]") {
  simulation in{choices::of_seed(1), {}};
  in.at(0, nanoseconds{0}, [] {
    try {
      always(false, coverage_point::newest_is_kept);
    } catch (const internal_error&) {
    }
  });
  while (in.step()) continue;
  CHECK(in.marks().first_broken() == coverage_point::newest_is_kept);
}

TEST_CASE("rare paths are off until drawn and allowed, and a record repeats them",
          "[simulated][marks]") {
  std::vector<choice> taken;
  std::vector<bool> answers;
  for (std::uint64_t seed = 0; answers.empty() && seed < 100; ++seed) {
    auto draws = choices::of_seed(seed);
    draws.record();
    coverage_book book{draws};
    const coverage_scope here{&book};
    CHECK_FALSE(rare(coverage_point::sent_twice));
    book.draw_rare();
    CHECK_FALSE(rare(coverage_point::sent_twice));
    book.let_rare(true);
    std::vector<bool> got;
    for (int i = 0; i < 64; ++i) got.push_back(rare(coverage_point::sent_twice));
    if (book.rare_taken() == 0) continue;
    CHECK(count_of(book, coverage_point::sent_twice) == book.rare_taken());
    answers = got;
    taken = draws.taken();
  }
  REQUIRE_FALSE(answers.empty());
  auto draws = choices::of_list(0, taken);
  coverage_book book{draws};
  const coverage_scope here{&book};
  book.draw_rare();
  book.let_rare(true);
  for (std::size_t i = 0; i < answers.size(); ++i)
    CHECK(rare(coverage_point::sent_twice) == answers[i]);
}

TEST_CASE("jobs survive rare paths", "[simulated][marks][campaign]") {
  job_spec what;
  what.ranks = 4;
  budget of;
  of.first_seed = 7000;
  of.runs = 120;
  const auto all = explore(what, with(fault_set::parse("rare_paths,crash_rank,stop")), of);
  for (const auto& r : all.violating)
    for (const auto& v : r.violations) UNSCOPED_INFO("seed " << r.seed << ": " << v);
  CHECK(all.clean());
  for (const auto m :
       {coverage_point::early_deadline, coverage_point::checkpoint_refused,
        coverage_point::early_look, coverage_point::sent_twice, coverage_point::said_twice}) {
    INFO(text_of(m));
    CHECK(all.marks.at(text_of(m)) > 0);
  }
}

namespace {

constexpr user_coverage detour{coverage_kind::rare, "a detour of a test's"};
constexpr user_coverage passed{coverage_kind::sometimes, "a place of a test's was passed"};
constexpr user_coverage small_steps{coverage_kind::always, "steps of a test's are small"};
constexpr user_coverage absent{coverage_kind::sometimes, "no run comes here"};

// A user's code, run after each step.
struct marking final : extension {
  void stepped(const finished_step& what, const complain_fn&) override {
    sometimes(what.step > 2, passed);
    always(what.step < bound || !rare(detour), small_steps);
  }
  std::int64_t bound = 1000;
};

run_plan marked(std::int64_t bound) {
  auto plan = with(fault_set::parse("rare_paths"));
  plan.marks = {absent, detour, passed, small_steps};
  plan.extensions = {[bound] {
    auto made = std::make_unique<marking>();
    made->bound = bound;
    return made;
  }};
  return plan;
}

}  // namespace

TEST_CASE("user coverage outside a simulation does nothing, and a broken invariant throws",
          "[simulated][marks]") {
  CHECK_FALSE(rare(detour));
  CHECK(sometimes(true, passed));
  CHECK_FALSE(sometimes(false, passed));
  always(true, small_steps);
  CHECK_THROWS_WITH(always(false, small_steps), Catch::Contains("steps of a test's are small"));
}

TEST_CASE("user coverage is counted; points never hit are listed with 0", "[simulated][marks]") {
  const auto all = explore({.ranks = 3, .steps = 6}, marked(1000), {.runs = 6});
  CHECK(all.clean());
  CHECK(all.met(passed));
  CHECK_FALSE(all.met(absent));
  CHECK(all.marks.at("a place of a test's was passed") >= 6 * 3 * 4);
  CHECK(all.marks.at("steps of a test's are small") >= 6 * 3 * 6);
  CHECK_THAT(all.marks_text(), Catch::Contains("x a place of a test's was passed\n") &&
                                   Catch::Contains("no run comes here"));
  CHECK_THROWS_AS(all.met("something unknown"), user_error);
  auto twice = marked(1000);
  twice.marks.push_back(passed);
  CHECK_THROWS_WITH(explore({.ranks = 2, .steps = 2}, twice, {.runs = 1}),
                    Catch::Contains("a place of a test's was passed"));
}

TEST_CASE("a user's invariant broken on a rare path is found, and replaying its case breaks it",
          "[simulated][marks]") {
  const auto plan = marked(5);
  const auto all = explore({.ranks = 3, .steps = 8}, plan, {.runs = 400});
  REQUIRE_FALSE(all.clean());
  CHECK_FALSE(all.held("invariants of one's own hold"));
  const auto& first = all.violating.front();
  const auto at =
      std::ranges::find(first.violations, std::string{own_marks_oracle}, &violation::oracle);
  REQUIRE(at != first.violations.end());
  CHECK(at->text == "steps of a test's are small");
  // Read from its text, with recorded choices.
  auto kept = case_of(first, all.variants.front());
  kept.taken = first.taken;
  kept.expect = own_marks_oracle;
  const auto again = parse_case(to_text(kept), plan);
  auto reference = reference_of(again.what.job);
  CHECK(remarks(again, replay(again, reference)).empty());
  // The record holds the draw of the rare path: without it no invariant is violated.
  auto without = again;
  std::erase_if(*without.taken, [](const choice& c) { return c.where == site::rare; });
  CHECK(remarks(without, replay(without, reference)).size() == 1);
}

TEST_CASE("a run without the fault rare_paths takes none", "[simulated][marks]") {
  job_spec what;
  what.ranks = 3;
  budget of;
  of.runs = 20;
  const auto all = explore(what, with(fault_set::none()), of);
  CHECK(all.clean());
  for (const auto& m : coverage_points)
    if (m.kind == coverage_kind::rare || m.kind == coverage_kind::rare_fault)
      CHECK(all.marks.at(std::string{m.text}) == 0);
  CHECK(all.marks.at(text_of(coverage_point::commit_grows)) > 0);
}
