// Goal: states have distinct digests. Images of parts are unique.
#include "apps/testing/exhaustive/flat_tables.hpp"
#include "apps/testing/exhaustive/rank_symmetry.hpp"

#include <array>
#include <set>

#include "tests/support/catch.hpp"

using namespace troupe::testing;

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

TEST_CASE("permutations of ranks: products and inverses", "[exhaust]") {
  const rank_permutations all(3, 0);
  REQUIRE(all.size() == 6);
  for (std::size_t p = 0; p < all.size(); ++p) {
    CHECK(all.product(p, all.inverse(p)) == 0);
    for (std::size_t q = 0; q < all.size(); ++q)
      for (const std::int32_t r : {0, 1, 2})
        CHECK(all.rank(all.product(p, q), r) == all.rank(q, all.rank(p, r)));
  }
  const rank_permutations fixed(3, 1);
  REQUIRE(fixed.size() == 2);
  CHECK(fixed.rank(1, 0) == 0);
  CHECK(fixed.rank(1, 1) == 2);
  CHECK(rank_permutations(3, 3).size() == 1);
}

TEST_CASE("a second image of a part by the same permutation throws not_symmetric", "[exhaust]") {
  image_table images(2);
  CHECK_FALSE(images.has(7, 1));
  CHECK(images.link(7, 1, 8));
  CHECK_FALSE(images.link(7, 1, 8));
  CHECK(images.at(7, 1) == 8);
  CHECK(images.at(7, 0) == 7);
  CHECK_THROWS_AS(images.link(7, 1, 9), not_symmetric);
  CHECK_THROWS_AS(images.link(7, 0, 9), not_symmetric);
}
