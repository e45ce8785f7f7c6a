// Goal: a draw depends on its label only. Streams do not influence each other, occurrences are
// counted per label, 0 is benign, and a recorded list repeats the run.
#include "apps/testing/choices.hpp"

#include <array>
#include <sstream>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe::testing;

namespace {

constexpr std::uint64_t wide = 1'000'000'007;

std::vector<std::uint64_t> draws_of(choices& from, site where, std::uint32_t who, int count) {
  std::vector<std::uint64_t> all;
  for (int i = 0; i < count; ++i) all.push_back(from.draw(where, who, wide));
  return all;
}

}  // namespace

TEST_CASE("a new draw changes no draw of another label", "[choices]") {
  const auto seed = GENERATE(std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX);
  INFO("seed " << seed);
  auto plain = choices::of_seed(seed);
  const auto latencies = draws_of(plain, site::latency, 3, 50);
  const auto faults = draws_of(plain, site::fault, 3, 50);
  const auto entropy = plain.bits(3);

  // The same draws among those of all other sites and neighbours, in another order.
  auto crowded = choices::of_seed(seed);
  const auto noise = [&] {
    crowded.draw(site::latency, 2, wide);
    crowded.draw(site::latency, 4, 7);
    crowded.draw(site::schedule, 3, wide);
    crowded.chance(site::rare, 3, 500'000);
    crowded.pick(site::detail, 3, std::array<std::uint64_t, 3>{5, 6, 7});
    crowded.bits(2);
  };
  CHECK(crowded.bits(3) == entropy);
  for (const auto f : faults) {
    noise();
    REQUIRE(crowded.draw(site::fault, 3, wide) == f);
  }
  for (const auto l : latencies) {
    noise();
    REQUIRE(crowded.draw(site::latency, 3, wide) == l);
  }
}

TEST_CASE("each label has its own stream of occurrences", "[choices]") {
  auto from = choices::of_seed(11);
  const auto one = draws_of(from, site::latency, 1, 40);
  const auto other = draws_of(from, site::latency, 2, 40);
  const auto elsewhere = draws_of(from, site::storage, 1, 40);
  CHECK(one != other);
  CHECK(one != elsewhere);
  auto next_seed = choices::of_seed(12);
  CHECK(draws_of(next_seed, site::latency, 1, 40) != one);
  // Each occurrence is a new draw, and every value of the range occurs.
  auto small = choices::of_seed(11);
  std::array<int, 8> seen{};
  for (int i = 0; i < 8000; ++i) ++seen.at(small.draw(site::schedule, 0, 8));
  for (const auto n : seen) CHECK(n == Approx(1000).margin(150));  // 5 standard deviations
}

TEST_CASE("a draw with one possible value counts as an occurrence of its site", "[choices]") {
  auto plain = choices::of_seed(5);
  const auto all = draws_of(plain, site::schedule, 0, 4);
  auto with_gaps = choices::of_seed(5);
  CHECK(with_gaps.draw(site::schedule, 0, 1) == 0);
  CHECK(with_gaps.draw(site::schedule, 0, wide) == all[1]);
  CHECK(with_gaps.pick(site::schedule, 0, std::array<std::uint64_t, 1>{9}) == 0);
  CHECK(with_gaps.draw(site::schedule, 0, wide) == all[3]);
  CHECK(with_gaps.draws() == 2);
}

TEST_CASE("draws missing from a list are benign", "[choices]") {
  auto from = choices::of_list(1, {{site::fault, 2, 1, 4}, {site::rare, 7, 0, 1}});
  CHECK(from.draw(site::fault, 2, 10) == 0);
  CHECK(from.draw(site::fault, 2, 10) == 4);
  CHECK(from.draw(site::fault, 2, 10) == 0);
  CHECK(from.draw(site::fault, 1, 10) == 0);
  CHECK(from.draw(site::detail, 2, 10) == 0);
  CHECK(from.chance(site::rare, 7, 1));  // whatever the probability
  CHECK_FALSE(from.chance(site::rare, 7, 999'999));
  CHECK(from.pick(site::schedule, 0, std::array<std::uint64_t, 3>{30, 20, 10}) == 0);
  // A listed value that exceeds the bound becomes the largest one.
  auto smaller = choices::of_list(1, {{site::fault, 0, 0, 4}, {site::fault, 0, 1, 4}});
  CHECK(smaller.draw(site::fault, 0, 3) == 2);
  CHECK(smaller.draw(site::fault, 0, 1) == 0);
  // Draws that are not choices come from the seed, whatever the list says.
  auto seeded = choices::of_seed(77);
  CHECK(choices::of_list(77, {{site::entropy, 0, 0, 1}}).bits(0) == seeded.bits(0));
}

TEST_CASE("a recorded list repeats the run and holds only non-benign draws", "[choices]") {
  const auto session = [](choices& from) {
    std::vector<std::uint64_t> all;
    for (std::uint32_t i = 0; i < 60; ++i) {
      all.push_back(from.draw(site::latency, i % 3, 4));
      all.push_back(from.chance(site::fault, i % 2, 300'000) ? 1 : 0);
      all.push_back(from.pick(site::schedule, 0, std::array<std::uint64_t, 4>{i, 9, 8, 7}));
    }
    return all;
  };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    auto first = choices::of_seed(seed);
    first.record();
    const auto said = session(first);
    std::size_t chosen = 0;
    for (const auto v : said) chosen += v != 0;
    CHECK(first.taken().size() == chosen);
    auto again = choices::of_list(seed, first.taken());
    again.record();
    CHECK(session(again) == said);
    CHECK(again.digest() == first.digest());
    CHECK(again.taken() == first.taken());
    // Removing one choice changes its own draw and no other.
    auto fewer = first.taken();
    const auto out = fewer[fewer.size() / 2];
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(fewer.size() / 2));
    auto without = choices::of_list(seed, fewer);
    const auto changed = session(without);
    std::size_t differ = 0;
    for (std::size_t i = 0; i < said.size(); ++i) {
      if (changed[i] == said[i]) continue;
      ++differ;
      CHECK(changed[i] == 0);
      CHECK(said[i] == out.value);
    }
    CHECK(differ == 1);
    CHECK(without.digest() != first.digest());
  }
}

TEST_CASE("an added key changes a pick only if the pick takes the added key", "[choices]") {
  auto few = choices::of_seed(3);
  auto more = choices::of_seed(3);
  const std::array<std::uint64_t, 3> keys{10, 20, 30};
  const std::array<std::uint64_t, 4> with_new{10, 15, 20, 30};
  int won = 0;
  for (int i = 0; i < 400; ++i) {
    const auto before = keys[few.pick(site::schedule, 0, keys)];
    const auto after = with_new[more.pick(site::schedule, 0, with_new)];
    if (after == 15)
      ++won;
    else
      REQUIRE(after == before);
  }
  CHECK(won == Approx(100).margin(45));
}

TEST_CASE("a choice is printed in the format of a case", "[choices]") {
  std::ostringstream out;
  out << choice{site::change_point, 3, 1, 77};
  CHECK(out.str() == "change_point.3.1=77");
}
