// Where a generation begins, and which ranks move with it.
#include "actors/moves.hpp"

#include <set>

#include "actors/generation_base.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

using numbers = std::vector<std::int32_t>;

// Each rank in a process of its own, or `together` in the first ones.
membership ranks_in(const numbers& homes) {
  membership all{job_id{1}, homes.size()};
  std::vector<incarnation_id> lives;
  for (std::size_t r = 0; r < homes.size(); ++r) lives.push_back(incarnation_id{20 + r});
  all.begin_with(lives);
  for (auto& m : all) m.process = homes[static_cast<std::size_t>(all.rank_of(m))];
  return all;
}

void hold(member& m, std::uint64_t point, std::int64_t steps, const std::string& digest) {
  m.point.number = point;
  m.point.loop.steps = steps;
  m.digest = digest;
}

numbers moving(const membership& of) {
  numbers all;
  for (const auto& m : of)
    if (m.moves) all.push_back(of.rank_of(m));
  return all;
}

}  // namespace

TEST_CASE("the base is the highest point that is left, with the state that most ranks have",
          "[generation_base]") {
  auto all = ranks_in({0, 1, 2, 3});
  hold(all.at(0), 3, 2, "two");
  hold(all.at(1), 4, 3, "three");
  hold(all.at(2), 4, 3, "three");
  hold(all.at(3), 5, 4, "four");
  all.leave(all.at(3));
  const auto agreed = agree_on_base(all);
  CHECK_FALSE(agreed.differs);
  CHECK(agreed.base.steps() == 3);
  CHECK(agreed.base.digest == "three");
  CHECK(agreed.base.holders(all) == numbers{1, 2});
  all.at(1).moves = true;
  CHECK(agreed.base.holders(all) == numbers{2});
}

TEST_CASE("two states with as many ranks each: there is no base", "[generation_base]") {
  auto all = ranks_in({0, 1});
  hold(all.at(0), 4, 3, "a");
  hold(all.at(1), 4, 3, "b");
  REQUIRE(agree_on_base(all).differs);
  CHECK_THAT(*agree_on_base(all).differs, Catch::Contains("different states of step 3"));
}

TEST_CASE("no rank holds a point: the base is not held, and has no holders", "[generation_base]") {
  const auto all = ranks_in({0, 1});
  const auto agreed = agree_on_base(all);
  CHECK_FALSE(agreed.differs);
  CHECK_FALSE(agreed.base.held());
  CHECK(agreed.base.holders(all).empty());
}

TEST_CASE("states of a generation that differ in one member have different digests",
          "[generation_base]") {
  std::vector<generation_state> all(12);
  all[1].base.point.number = 1;
  all[2].base.digest = "a";
  all[3].redone = 1;
  all[4].waits = 1;
  all[5].asked = 1;
  all[6].proposed = true;
  all[7].close_sent = true;
  all[8].over = false;
  all[9].orderly = false;
  all[10].resting = true;
  all[11].named = 0;
  std::set<std::uint64_t> digests;
  for (const auto& one : all) {
    stable_hasher hash;
    one.add_to(hash);
    digests.insert(hash.digest());
  }
  CHECK(digests.size() == all.size());
}

TEST_CASE("a message counts for the member that sent it in this generation", "[membership]") {
  auto all = ranks_in({0, 1});
  const auto at = all.fence_for(all.at(1));
  CHECK(all.generation() == generation_id{1});
  CHECK(all.sender(at) == &all.at(1));
  auto other = at;
  other.job = job_id{2};
  CHECK_FALSE(all.sender(other));
  all.at(1).moves = true;
  all.begin_generation({0}, 0);
  CHECK_FALSE(all.sender(at));
  CHECK(all.is_of_former(at));
  CHECK_FALSE(all.is_of_former(other));
  CHECK(all.sender(all.fence_for(all.at(1))) == &all.at(1));
  all.leave(all.at(1));
  CHECK_FALSE(all.sender(all.fence_for(all.at(1))));
}

TEST_CASE("ranks of a process that leaves move, but one that holds the base stays", "[moves]") {
  auto all = ranks_in({0, 0, 1, 1});
  placements places{{.processes = 2}};
  places.begin(4);
  CHECK_FALSE(any_leaves(all, places));
  places.leave(1);
  CHECK(any_leaves(all, places));
  choose_moves(all, places, {1, 2}, false);
  CHECK(moving(all) == numbers{2, 3});
  choose_moves(all, places, {2, 3}, false);
  CHECK(moving(all) == numbers{3});
}

TEST_CASE("scaling: the processes that started last leave, or ranks beyond the share move",
          "[moves]") {
  auto all = ranks_in({0, 0, 1, 1});
  placements places{{.processes = 2}};
  places.begin(4);
  SECTION("down") {
    places.scale(1);
    choose_moves(all, places, {0, 1, 2, 3}, true);
    CHECK(moving(all) == numbers{2, 3});
    CHECK(places.working() == 1);
  }
  SECTION("up") {
    places.scale(4);
    choose_moves(all, places, {0, 1, 2, 3}, true);
    CHECK(moving(all) == numbers{1, 3});
    const auto homes = new_homes(all, places, {1, 3}, false);
    REQUIRE(homes.size() == 2);
    CHECK(homes[0].started == numbers{2});
    CHECK(homes[0].homes == std::vector{std::pair{1, 2}});
    CHECK(homes[1].homes == std::vector{std::pair{3, 3}});
  }
}

TEST_CASE("ranks of a lost process move to one process together; ranks that are threads stay",
          "[moves]") {
  const auto all = ranks_in({0, 0, 1, 1});
  CHECK(lives_in(all, 1));
  CHECK_FALSE(lives_in(all, 2));
  placements places{{.processes = 2}};
  places.begin(4);
  places.lost(1);
  CHECK(working_processes(all, places) == 2);
  const auto homes = new_homes(all, places, {2, 3}, false);
  REQUIRE(homes.size() == 1);
  CHECK(homes[0].started == numbers{2});
  CHECK(homes[0].homes == std::vector{std::pair{2, 2}, std::pair{3, 2}});
  placements threads;
  CHECK(working_processes(all, threads) == 4);
  const auto same = new_homes(all, threads, {1}, false);
  REQUIRE(same.size() == 1);
  CHECK(same[0].started.empty());
  CHECK(same[0].homes == std::vector{std::pair{1, 0}});
}
