// Goal: one operation over MPI, whose counts are ints, may carry more than 2^31 bytes.
#include "tests/conformance/mpi/mpi_suite.hpp"
#include "tests/support/wide_memory.hpp"

#include <algorithm>
#include <cstring>

#include "tests/support/catch.hpp"

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
namespace troupe::testing {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t half = (std::size_t{1} << 30) + 8 * page;

void mark_end(wide_memory& memory, int value) {
  std::memset(memory.data() + memory.size() - page, value, page);
}
// The first bytes are zero unless an offset was counted modulo 2^32.
bool ends_with(wide_memory& memory, std::uint8_t value) {
  const auto* end = memory.data() + memory.size();
  return memory.data()[0] == 0 &&
         std::count(end - page, end, value) == static_cast<std::ptrdiff_t>(page);
}
buffer all_of(wide_memory& memory) { return {memory.data(), memory.size(), dtype::u8}; }

TEST_CASE("all_reduce carries more than 2^31 bytes", "[large]") {
  if (world != 2) return;
  const auto c = next_generation();
  wide_memory both{2 * half, 16 * page};
  mark_end(both, 3 + rank);
  c->all_reduce(all_of(both), reduction::max)->wait();
  CHECK(ends_with(both, 4));
}

TEST_CASE("all_gather carries more than 2^31 bytes", "[large]") {
  if (world != 2) return;
  const auto c = next_generation();
  wide_memory both{2 * half, 16 * page};
  mark_end(both, 7 + rank);
  const auto at = static_cast<std::size_t>(rank) * half;
  c->all_gather({both.data() + at, half, dtype::u8}, all_of(both))->wait();
  CHECK(ends_with(both, 8));
}

TEST_CASE("reduce_scatter carries more than 2^31 bytes", "[large]") {
  if (world != 2) return;
  const auto c = next_generation();
  wide_memory both{2 * half, 16 * page};
  wide_memory mine{half, 16 * page};
  mark_end(both, 9 + rank);
  c->reduce_scatter(all_of(both), all_of(mine), reduction::max)->wait();
  CHECK(ends_with(mine, rank == 1 ? 10 : 0));
}

}  // namespace
}  // namespace troupe::testing
#endif
