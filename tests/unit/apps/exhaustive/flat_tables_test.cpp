// Goal: the search's hash tables keep all entries when they grow.
#include "apps/testing/exhaustive/flat_tables.hpp"

#include <set>

#include "tests/support/catch.hpp"

using namespace troupe::testing;

TEST_CASE("digest_set::insert returns true only for a new digest", "[exhaust]") {
  digest_set set;
  CHECK(set.insert({}));
  CHECK_FALSE(set.insert({}));
  constexpr std::uint32_t count = 100'000;
  for (std::uint32_t round = 0; round < 2; ++round)
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::array<std::uint32_t, 2> words{i, i / 7};
      REQUIRE(set.insert(digest_of(words)) == (round == 0));
    }
  CHECK(set.size() == count + 1);
}

TEST_CASE("digests of small states differ in their low and in their high half", "[exhaust]") {
  std::set<std::uint64_t> low;
  std::set<std::uint64_t> high;
  std::size_t count = 0;
  for (std::uint32_t a = 0; a < 40; ++a)
    for (std::uint32_t b = 0; b < 40; ++b)
      for (std::uint32_t c = 0; c < 40; ++c, ++count) {
        const std::array<std::uint32_t, 3> words{a, b, c};
        low.insert(digest_of(words).low);
        high.insert(digest_of(words).high);
      }
  CHECK(low.size() == count);
  CHECK(high.size() == count);
}

TEST_CASE("number_map finds all added keys and no others", "[exhaust]") {
  number_map map;
  CHECK_FALSE(map.find(0));
  for (std::uint32_t i = 0; i < 50'000; ++i) map.add(std::uint64_t{i} << 32 | i % 3, i);
  for (std::uint32_t i = 0; i < 50'000; ++i) {
    REQUIRE(map.find(std::uint64_t{i} << 32 | i % 3) == i);
    REQUIRE_FALSE(map.find(std::uint64_t{i} << 32 | 3));
  }
}
