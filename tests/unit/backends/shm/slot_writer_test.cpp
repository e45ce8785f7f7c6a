// Goal: slot_writer copies exactly, and measures which kind of store is faster.
#include "backends/shm/slot_writer.hpp"

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using troupe::shm::slot_writer;
using namespace std::chrono_literals;

constexpr std::size_t page = 4096;
constexpr std::size_t much = std::size_t{1} << 20;

// Writes `bytes` bytes, `skew` bytes off a cache line, and checks that nothing around them changed.
bool writes_exactly(slot_writer& with, std::size_t bytes, std::size_t skew) {
  std::vector<std::uint8_t> from(bytes + 2 * 64 + skew);
  std::mt19937 draw{static_cast<std::uint32_t>(bytes + skew)};
  for (auto& one : from) one = static_cast<std::uint8_t>(draw());
  std::vector<std::uint8_t> to(from.size(), 0xa5);
  const auto first = 64 + skew;
  with.write(to.data() + first, from.data() + first, bytes);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const bool inside = i >= first && i < first + bytes;
    if (to[i] != (inside ? from[i] : 0xa5)) return false;
  }
  return true;
}

const std::array<std::size_t, 12> lengths{
    0, 1, 63, 64, 2047, 2049, page - 1, page, page + 1, 5 * page + 7, 9 * page, much + 3};

}  // namespace

TEST_CASE("slot_writer copies exactly the given bytes with every kind of store", "[shm]") {
  for (const bool tries : {false, true})
    for (const auto took : {1ns, 1'000'000ns})
      for (const auto bytes : lengths)
        for (const std::size_t skew : {0, 1, 60}) {
          slot_writer with;
          with.begin(tries ? much : page);
          with.learn(took, page);
          CAPTURE(tries, took.count(), bytes, skew);
          CHECK(writes_exactly(with, bytes, skew));
        }
}

TEST_CASE("slot_writer bypasses the caches after a slow trial and tries again later", "[shm]") {
  slot_writer with;
  std::vector<std::byte> from(page), to(page);
  const auto pages_until_due = [&] {
    int pages = 0;
    for (; !with.due() && pages < 10'000; ++pages) with.write(to.data(), from.data(), page);
    return pages;
  };
  with.begin(much);
  CHECK(with.due());
  with.learn(100ns, page);  // 1.6 ns per line
  CHECK(with.plain());
  CHECK(pages_until_due() == 8);
  with.learn(1900ns, page);  // 30 ns per line
  CHECK_FALSE(with.plain());
  CHECK(pages_until_due() == 256);
  SECTION("the choice stays across operations") {
    with.learn(1900ns, page);
    with.begin(much);
    CHECK_FALSE(with.due());
  }
  SECTION("a small operation is never timed") {
    with.begin(page);
    CHECK_FALSE(with.due());
    with.learn(1ns, page);
    CHECK_FALSE(with.plain());
  }
}
