// Goal: a fence accepts a message for the receiver's own incarnation. For every other message the
// verdict names the first part that differs, in a fixed order of comparison.
#include "messages/fence.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

fence mine() {
  fence at;
  at.job = job_id{7};
  at.term = term_id{3};
  at.generation = generation_id{4};
  at.incarnation = incarnation_id{50};
  return at;
}

}  // namespace

TEST_CASE("a fence of the receiver's incarnation is current at any step and sequence", "[fence]") {
  auto at = mine();
  at.step = step_id{12};
  at.sequence = sequence_id{99};
  CHECK(check(at, mine()) == fence_verdict::current);
  at.term = term_id{4};  // a newer term: the receivers that allow it adopt it
  CHECK(check(at, mine()) == fence_verdict::current);
}

TEST_CASE("each part of a fence alone refuses a value that is too low or too high", "[fence]") {
  const auto verdict = [](auto change) {
    auto at = mine();
    change(at);
    return check(at, mine());
  };
  for (const std::uint64_t job : {0, 6, 8})
    CHECK(verdict([&](fence& at) { at.job = job_id{job}; }) == fence_verdict::other_job);
  for (const std::uint64_t term : {0, 2})
    CHECK(verdict([&](fence& at) { at.term = term_id{term}; }) == fence_verdict::stale_term);
  for (const std::uint64_t generation : {0, 3})
    CHECK(verdict([&](fence& at) { at.generation = generation_id{generation}; }) ==
          fence_verdict::stale_generation);
  CHECK(verdict([](fence& at) { at.generation = generation_id{5}; }) ==
        fence_verdict::future_generation);
  for (const std::uint64_t incarnation : {0, 49, 51})
    CHECK(verdict([&](fence& at) { at.incarnation = incarnation_id{incarnation}; }) ==
          fence_verdict::other_incarnation);
}

TEST_CASE(
    "fence with several wrong parts: job is reported first and then term generation incarnation",
    "[fence]") {
  auto at = mine();
  at.incarnation = incarnation_id{1};
  CHECK(check(at, mine()) == fence_verdict::other_incarnation);
  at.generation = generation_id{5};
  CHECK(check(at, mine()) == fence_verdict::future_generation);
  at.term = term_id{1};
  CHECK(check(at, mine()) == fence_verdict::stale_term);
  at.job = job_id{8};
  CHECK(check(at, mine()) == fence_verdict::other_job);
}
