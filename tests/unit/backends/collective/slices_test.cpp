// Goal: the slices of an operation partition its data exactly.
#include "backends/collective/slices.hpp"

#include <rapidcheck.h>

#include "tests/support/catch.hpp"

namespace troupe {

TEST_CASE("slices partition every piece into whole cache lines of bounded size") {
  CHECK(rc::check("slices", [] {
    const auto pieces = *rc::gen::inRange<std::size_t>(1, 9);
    const auto elements = *rc::gen::inRange<std::size_t>(0, 200000);
    const auto bytes = *rc::gen::element<std::size_t>(1, 2, 4, 8, 16);
    const auto touched = *rc::gen::inRange<std::size_t>(1, 70);
    const auto work = std::size_t{256} << 10;
    const slices cut{pieces, elements, bytes, touched, work};
    std::size_t index = 0;
    for (std::size_t piece = 0; piece < pieces; ++piece)
      for (std::size_t first = 0; first < elements;) {
        const auto most = *rc::gen::inRange<std::size_t>(1, 6);
        const auto s = cut.run(index, most);
        RC_ASSERT(s.piece == piece);
        RC_ASSERT(s.first == first);
        RC_ASSERT(s.count > 0u);
        RC_ASSERT(s.first * bytes % 64 == 0u);
        RC_ASSERT(s.count * bytes <= most * std::max<std::size_t>(work / touched, 4096));
        const auto length = cut.length(s);
        RC_ASSERT(length >= 1u && length <= most);
        RC_ASSERT(length == most || first + s.count == elements);
        first += s.count;
        index += length;
      }
    RC_ASSERT(index == cut.total());
  }));
}

TEST_CASE("slices count beyond 32 bits") {
  constexpr std::size_t elements = (std::size_t{1} << 40) + 5;
  const slices cut{3, elements, 16, 2, std::size_t{256} << 10};
  const auto per_piece = cut.total() / 3;
  CHECK(per_piece == (std::size_t{1} << 40) / 8192 + 1);
  CHECK(cut.run(per_piece - 1, 4) == slice{0, std::size_t{1} << 40, 5});
  CHECK(cut.run(cut.total() - 1, 1) == slice{2, std::size_t{1} << 40, 5});
  CHECK(cut.run(per_piece, 1) == slice{1, 0, 8192});
}

TEST_CASE("slices::one gives one slice of everything and no slice of nothing") {
  const auto all = slices::one(300);
  CHECK(all.total() == 1);
  CHECK(all.run(0, 4) == slice{0, 0, 300});
  CHECK(all.length(all.run(0, 4)) == 1);
  CHECK(slices::one(0).total() == 0);
}

}  // namespace troupe
