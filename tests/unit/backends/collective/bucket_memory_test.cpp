// Goal: buckets of gradients are placed so that the buckets of different ranks do not collide in a
// first-level cache.
#include "backends/collective/bucket_memory.hpp"

#include <cstdint>
#include <cstring>

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

// Model of the measured slowdown: lines that a first-level cache cannot hold at once have the same
// place in their page and the same hash of the address bits above.
bool pushed_out(std::uintptr_t a, std::uintptr_t b) {
  const auto hash = [](std::uintptr_t x) {
    std::uintptr_t mixed = 0;
    for (unsigned bit = 0; bit < 8; ++bit)
      mixed |= (x >> (12 + bit) & 1) << bit ^ (x >> (27 - bit) & 1) << bit;
    return mixed;
  };
  return (a >> 6 & 63) == (b >> 6 & 63) && hash(a) == hash(b);
}

TEST_CASE("buckets of different ranks never collide in a first-level cache") {
  constexpr std::uintptr_t huge_page = std::uintptr_t{2} << 20;
  constexpr std::uintptr_t base = std::uintptr_t{0x7f12} << 32;
  CHECK(pushed_out(base, base + 128 * huge_page));  // without offsets they collide
  for (std::size_t a = 0; a < 16; ++a)
    for (std::size_t b = 0; b < a; ++b)
      for (std::uintptr_t apart = 1; apart < 1024; ++apart) {
        const auto x = base + bucket_offset(a);
        const auto y = base + apart * huge_page + bucket_offset(b);
        REQUIRE_FALSE(pushed_out(x, y));
      }
}

TEST_CASE("a bucket has the requested size and is aligned and can be written") {
  const std::size_t bytes =
      GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{65535}, std::size_t{65536},
               std::size_t{1000000}, std::size_t{4} << 20, (std::size_t{6} << 20) + 12345);
  for (std::size_t rank = 0; rank < 20; ++rank) {
    const auto memory = allocate_bucket(bytes, rank % 2 == 0, rank);
    REQUIRE(memory);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.get()) % 64 == 0);
    std::memset(memory.get(), 1, bytes);  // AddressSanitizer checks the bounds
  }
}

}  // namespace
}  // namespace troupe
