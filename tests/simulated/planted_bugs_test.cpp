// Goal: the search of a small company finds the bugs that are planted in its machines, and nothing
// where none is. Method: the machines compiled once more, with the bugs in (messages/planted.hpp);
// all of the bugs, and the campaigns that the others need: tests/mutants.sh.
#include "apps/testing/exhaustive/checkpoint_search.hpp"
#include "messages/planted.hpp"
#include "troupe/testing/exhaustive.hpp"

#include "tests/support/catch.hpp"

#ifndef TROUPE_PLANT_BUGS
#error "this test is compiled with the planted bugs in"
#endif

using namespace troupe;
using namespace troupe::testing;

namespace {

// With any one fault; or with any two of some.
std::string found_with(bug which, std::vector<small_fault> two_of = {}) {
  exhaustive_options options;
  options.ranks = 2;
  if (!two_of.empty()) {
    options.faults = std::move(two_of);
    options.budget = 2;
  }
  planted_now = which;
  const auto report = exhaust(options);
  planted_now = bug::none;
  if (report.violation) return report.violation->what;
  CHECK(report.complete);
  return {};
}

// In a run that goes on from the first of three checkpoints of another.
std::string found_in_checkpoints(bug which, std::uint32_t failures, std::uint32_t generations,
                                 std::int32_t keep_best = 1) {
  checkpoint_search what;
  what.steps = 2;
  what.past = 3;
  what.resumed = 1;
  what.failures = failures;
  what.keep_best = keep_best;
  what.generations = generations;
  planted_now = which;
  const auto report = search_checkpoints(what);
  planted_now = bug::none;
  if (report.violation) return *report.violation;
  CHECK(report.complete);
  return {};
}

}  // namespace

TEST_CASE("a small company finds what is planted in its machines", "[exhaust][planted]") {
  CHECK(found_with(bug::none) == "");
  for (const auto which :
       {bug::commit_by_one, bug::last_cause_wins, bug::follower_as_cause, bug::close_skips_a_rank,
        bug::teardown_skips_a_rank, bug::stop_at_least_vote, bug::stop_by_first_vote,
        bug::vanished_rank_ignored, bug::first_finisher_ends, bug::closing_keeps_waiting,
        bug::hold_ignored}) {
    INFO(planted_bugs[static_cast<std::size_t>(which) - 1].name);
    CHECK(found_with(which) != "");
  }
}

TEST_CASE("what needs two faults is found with two", "[exhaust][planted]") {
  const std::vector<small_fault> late{small_fault::throws, small_fault::early_deadline};
  CHECK(found_with(bug::none, late) == "");
  for (const auto which :
       {bug::survivor_for_good, bug::teardown_forgotten, bug::late_failure_forgotten}) {
    INFO(planted_bugs[static_cast<std::size_t>(which) - 1].name);
    CHECK(found_with(which, late) != "");
  }
}

TEST_CASE("a search of checkpoints finds what is planted in them", "[exhaust][planted]") {
  CHECK(found_in_checkpoints(bug::none, 0, 1) == "");
  for (const auto which :
       {bug::newer_snapshot_dropped, bug::best_snapshot_replaced, bug::uncommitted_is_written,
        bug::rename_before_sync, bug::parent_not_synced, bug::latest_not_synced,
        bug::newest_removed_first}) {
    INFO(planted_bugs[static_cast<std::size_t>(which) - 1].name);
    CHECK(found_in_checkpoints(which, 0, 1) != "");
  }
  CHECK(found_in_checkpoints(bug::failed_write_is_written, 1, 1) != "");
  // These need a step that is skipped although it is the best.
  CHECK(found_in_checkpoints(bug::swept_before_sync, 0, 1, 0) != "");
  CHECK(found_in_checkpoints(bug::undone_before_sync, 1, 1, 0) != "");
  CHECK(found_in_checkpoints(bug::old_generation_written, 0, 2) != "");
}

TEST_CASE("each planted bug is listed at its own place", "[planted]") {
  for (std::size_t i = 0; i < std::size(planted_bugs); ++i)
    CHECK(static_cast<std::size_t>(planted_bugs[i].which) == i + 1);
}
