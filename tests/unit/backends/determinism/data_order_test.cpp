// Goal: the order of samples is the documented function, and every sample of an epoch is consumed
// exactly once, for any number of ranks and any batch size.
//
// The golden values are what this independent program prints (Python):
//
//   M = 2**64 - 1
//   def out(z):
//       z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & M
//       z = ((z ^ z >> 27) * 0x94d049bb133111eb) & M
//       return z ^ z >> 31
//   def mix(x): return out((x + 0x9e3779b97f4a7c15) & M)
//   def permutation(seed, epoch, size):
//       state, order = mix((mix(seed) + epoch) & M), list(range(size))
//       for i in range(size - 1, 0, -1):
//           state = (state + 0x9e3779b97f4a7c15) & M
//           j = out(state) * (i + 1) >> 64
//           order[i], order[j] = order[j], order[i]
//       return order
//   print(hex(mix(0)), hex(mix(1)), hex(mix(M)))
//   print(permutation(0, 0, 10), permutation(7, 0, 10), permutation(7, 1, 10))
//   print(permutation(M, 3, 16))
//   big = permutation(42, 2, 60000)
//   print(big[:6], big[-4:], sum(i * x for i, x in enumerate(big)))
#include "troupe/detail/data_order.hpp"

#include "troupe/failure.hpp"

#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

using order = std::vector<std::int64_t>;
constexpr auto top = ~std::uint64_t{0};

order counted(std::int64_t size) {
  order all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

TEST_CASE("the order of samples equals the documented permutation", "[data_order]") {
  CHECK(mix(0) == 0xe220a8397b1dcdaf);
  CHECK(mix(1) == 0x910a2dec89025cc1);
  CHECK(mix(top) == 0xe4d971771b652c20);
  CHECK(permutation(0, 0, 10) == order{4, 7, 0, 5, 9, 3, 6, 2, 8, 1});
  CHECK(permutation(7, 0, 10) == order{4, 1, 9, 2, 5, 8, 0, 7, 3, 6});
  CHECK(permutation(7, 1, 10) == order{1, 2, 0, 4, 8, 6, 3, 7, 5, 9});
  CHECK(permutation(top, 3, 16) == order{11, 15, 2, 13, 9, 10, 0, 8, 14, 5, 12, 4, 6, 1, 3, 7});
  const auto big = permutation(42, 2, 60000);
  CHECK(order(big.begin(), big.begin() + 6) == order{59234, 23528, 5889, 49327, 38558, 50658});
  CHECK(order(big.end() - 4, big.end()) == order{33554, 20589, 5758, 1527});
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < big.size(); ++i) sum += static_cast<std::int64_t>(i) * big[i];
  CHECK(sum == 54041130892920);
}

TEST_CASE("a permutation visits every sample exactly once", "[data_order]") {
  CHECK(permutation(1, 0, 0).empty());
  CHECK(permutation(1, 0, 1) == order{0});
  CHECK(rc::check("permutation", [](std::uint64_t seed) {
    const auto size = *rc::gen::inRange<std::int64_t>(0, 500);
    const auto epoch = *rc::gen::inRange<std::int64_t>(0, 1000);
    auto seen = permutation(seed, epoch, size);
    RC_ASSERT(seen == permutation(seed, epoch, size));
    std::sort(seen.begin(), seen.end());
    RC_ASSERT(seen == counted(size));
  }));
}

TEST_CASE("micro-batches partition an epoch into contiguous pieces over the ranks",
          "[data_order]") {
  CHECK(rc::check("layout", [] {
    const data_layout layout{*rc::gen::inRange<std::int64_t>(0, 400),
                             *rc::gen::inRange<std::int64_t>(1, 9),
                             *rc::gen::inRange<std::int64_t>(1, 20)};
    const auto each = layout.ranks * layout.batch_size;
    RC_ASSERT(layout.batches() == (layout.size + each - 1) / each);
    std::int64_t next = 0;
    for (std::int64_t b = 0; b < layout.batches(); ++b) {
      const auto whole = layout.of_batch(b);
      RC_ASSERT(whole == (piece{next, std::min(each, layout.size - next)}));
      RC_ASSERT(whole.count > 0);
      RC_ASSERT(layout.samples(b, b) == whole.count);
      auto longest = layout.batch_size;
      for (std::int64_t r = 0; r < layout.ranks; ++r) {
        const auto mine = layout.of_rank(b, r);
        RC_ASSERT(mine.first == next);
        RC_ASSERT(mine.count <= longest);                     // earlier ranks have more samples,
        RC_ASSERT(mine.count >= whole.count / layout.ranks);  // by one at most
        RC_ASSERT(mine.count <= (whole.count - 1) / layout.ranks + 1);
        longest = mine.count;
        next += mine.count;
      }
    }
    RC_ASSERT(next == layout.size);
    RC_ASSERT(layout.samples(0, layout.batches() - 1) == layout.size);
    RC_ASSERT(layout.of_batch(layout.batches()).count == 0);
    RC_ASSERT(layout.of_rank(layout.batches(), 0).count == 0);
  }));
}

TEST_CASE("the samples of a window are the sum of its micro-batches", "[data_order]") {
  const data_layout layout{25, 2, 4};  // 8, 8, 8, 1
  CHECK(layout.batches() == 4);
  CHECK(layout.samples(0, 1) == 16);
  CHECK(layout.samples(2, 3) == 9);
  CHECK(layout.samples(3, 7) == 1);
  CHECK(layout.samples(4, 7) == 0);
  CHECK(layout.of_rank(3, 0) == piece{24, 1});
  CHECK(layout.of_rank(3, 1) == piece{25, 0});
}

TEST_CASE("resume with other ranks and batch size: each remaining sample is in one micro-batch",
          "[data_order]") {
  CHECK(rc::check("resumed layout", [] {
    const data_layout before{*rc::gen::inRange<std::int64_t>(0, 400),
                             *rc::gen::inRange<std::int64_t>(1, 9),
                             *rc::gen::inRange<std::int64_t>(1, 20)};
    const auto done = *rc::gen::inRange<std::int64_t>(0, before.batches() + 1);
    const auto cursor = before.samples(0, done - 1);
    data_layout after{before.size, *rc::gen::inRange<std::int64_t>(1, 9),
                      *rc::gen::inRange<std::int64_t>(1, 20)};
    after = after.resumed(done, cursor);
    const auto each = after.ranks * after.batch_size;
    auto next = cursor;
    for (auto b = done; b < after.batches(); ++b) {
      const auto whole = after.of_batch(b);
      RC_ASSERT(whole == (piece{next, std::min(each, after.size - next)}));
      for (std::int64_t r = 0; r < after.ranks; ++r) {
        const auto mine = after.of_rank(b, r);
        RC_ASSERT(mine.first == next);
        next += mine.count;
      }
    }
    RC_ASSERT(next == after.size);
    RC_ASSERT(after.samples(0, after.batches() - 1) == after.size - cursor);
    RC_ASSERT(after.of_batch(done - 1).count == 0);
  }));
}

TEST_CASE("resume with the same ranks and batch size gives the same micro-batches",
          "[data_order]") {
  const data_layout plain{25, 2, 4};
  const auto resumed = plain.resumed(2, 16);
  CHECK(resumed.batches() == plain.batches());
  for (std::int64_t b = 2; b < plain.batches(); ++b)
    for (std::int64_t r = 0; r < plain.ranks; ++r)
      CHECK(resumed.of_rank(b, r) == plain.of_rank(b, r));
}

TEST_CASE("an impossible layout is an internal error", "[data_order]") {
  CHECK_THROWS_AS((data_layout{8, 1, 1, 0, 9}.batches()), internal_error);
  CHECK_THROWS_AS((data_layout{1, 0, 1}.batches()), internal_error);
  CHECK_THROWS_AS((data_layout{1, 1, 0}.batches()), internal_error);
  CHECK_THROWS_AS((data_layout{-1, 1, 1}.batches()), internal_error);
  CHECK_THROWS_AS((data_layout{8, 2, 1}.of_rank(0, 2)), internal_error);
  CHECK_THROWS_AS((data_layout{8, 2, 1}.resumed(2, 4).of_rank(1, 0)), internal_error);
  CHECK_THROWS_AS(permutation(0, 0, -1), internal_error);
  CHECK_THROWS_AS(permutation(0, 0, std::int64_t{1} << 40), internal_error);
}
