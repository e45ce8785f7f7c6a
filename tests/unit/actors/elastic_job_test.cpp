// Goal: whatever fails, in any order of messages, a job that restarts ends with the numbers of the
// job without failures.
#include "tests/unit/actors/elastic_job.hpp"

#include <algorithm>

#include "tests/support/catch.hpp"

using namespace troupe;
using elastic::job;

namespace {

void check_finished(const job& one, std::int64_t steps) {
  INFO((one.end().first ? render(*one.end().first) : std::string{}));
  REQUIRE(one.end().status == job_outcome::ending::finished);
  CHECK_FALSE(one.end().first);
  for (const auto number : one.numbers()) CHECK(number == job::expected(steps));
  // Steps are committed twice only after all ranks have lost them.
  const bool lost =
      std::ranges::any_of(one.end().generations, [](const auto& g) { return g.steps_redone > 0; });
  CHECK((lost || std::ranges::is_sorted(one.commits, std::less_equal{})));
  REQUIRE_FALSE(one.commits.empty());
  CHECK(one.commits.back() == steps);
}

}  // namespace

TEST_CASE("a job without failures has one generation", "[elastic]") {
  job one{{.max_restarts = 3}, 1};
  one.run();
  check_finished(one, 4);
  CHECK(one.end().generation == generation_id{1});
  CHECK(one.end().generations.size() == 1);
}

// Replay: the seed is printed; run this test with `-c SEED`.
TEST_CASE("jobs with random failures end with the numbers of the job without failures",
          "[elastic]") {
  const auto seed = GENERATE(range(std::uint64_t{1}, std::uint64_t{3000}));
  elastic::job_options options;
  options.ranks = 1 + static_cast<std::int32_t>(seed % 4);
  options.kills = static_cast<int>(seed / 4 % 4);
  options.throws = static_cast<int>(seed / 16 % 3);
  options.stuck = static_cast<int>(seed / 48 % 2);
  options.max_restarts = 2 * (options.kills + options.throws + options.stuck) + 1;
  options.steps = 5;
  CAPTURE(seed, options.ranks, options.kills, options.throws, options.stuck);
  job one{options, seed};
  REQUIRE_NOTHROW(one.run());
  check_finished(one, options.steps);
}

TEST_CASE("processes leave and the caller scales: no step is done twice", "[elastic]") {
  const auto seed = GENERATE(range(std::uint64_t{1}, std::uint64_t{1500}));
  elastic::job_options options;
  options.ranks = 2 + static_cast<std::int32_t>(seed % 3);
  options.leaves = static_cast<int>(seed / 3 % 4);
  options.scales = options.leaves == 0 ? 1 : static_cast<int>(seed / 12 % 3);
  options.max_restarts = 1;
  options.steps = 8;
  CAPTURE(seed, options.ranks, options.leaves, options.scales);
  job one{options, seed};
  REQUIRE_NOTHROW(one.run());
  check_finished(one, options.steps);
  CHECK(one.updates.size() == static_cast<std::size_t>(options.ranks * options.steps));
  CHECK(std::ranges::all_of(one.updates, [](const auto& u) { return u.second == 1; }));
  for (const auto& g : one.end().generations) {
    CHECK_FALSE(g.ended_by);
    CHECK(g.steps_redone == 0);
    CHECK((g.changed == membership_change::none) == (&g == &one.end().generations.back()));
  }
  CHECK(one.end().late.empty());
}

TEST_CASE("processes leave while others fail: the numbers are those of the job without failures",
          "[elastic]") {
  const auto seed = GENERATE(range(std::uint64_t{1}, std::uint64_t{3000}));
  elastic::job_options options;
  options.ranks = 2 + static_cast<std::int32_t>(seed % 3);
  options.kills = static_cast<int>(seed / 3 % 3);
  options.throws = static_cast<int>(seed / 9 % 2);
  options.stuck = static_cast<int>(seed / 18 % 2);
  options.leaves = 1 + static_cast<int>(seed / 36 % 3);
  options.scales = static_cast<int>(seed / 108 % 2);
  options.max_restarts = 2 * (options.kills + options.throws + options.stuck) + 1;
  options.steps = 6;
  CAPTURE(seed, options.ranks, options.kills, options.throws, options.stuck, options.leaves);
  job one{options, seed};
  REQUIRE_NOTHROW(one.run());
  check_finished(one, options.steps);
}
