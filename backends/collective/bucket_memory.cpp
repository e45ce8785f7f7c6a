#include "backends/collective/bucket_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

namespace troupe {

namespace {

constexpr std::size_t line = 64;
constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t huge_from = std::size_t{4} << 20;
constexpr std::size_t apart_from = std::size_t{64} << 10;  // less stays in caches behind the first

}  // namespace

std::size_t bucket_offset(std::size_t rank) {
  constexpr std::size_t bits = 4;
  std::size_t mirrored = 0;  // 0, 1/2, 1/4, 3/4, 1/8 ... of a page
  for (std::size_t bit = 0; bit < bits; ++bit)
    if ((rank >> bit & 1) != 0) mirrored |= page >> (bit + 1);
  return rank % (std::size_t{1} << bits) * page + mirrored;
}

std::shared_ptr<void> allocate_bucket(std::size_t bytes, bool huge_pages, std::size_t rank) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc{};
  const auto alignment = bytes >= huge_from ? huge_page : line;
  const auto offset = bytes >= apart_from ? bucket_offset(rank) : 0;
  const auto used = std::max<std::size_t>(offset + bytes, 1);
  const auto rounded = (used + alignment - 1) / alignment * alignment;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (!memory) throw std::bad_alloc{};
  // A wish: where it is not granted, memory is slower and otherwise the same. A huge page of which
  // little is used is none.
  const auto left = used % huge_page;
  const auto huge = left < huge_page / 4 ? used - left : rounded;
  if (huge_pages && alignment == huge_page) madvise(memory, huge, MADV_HUGEPAGE);
  return {memory + offset, [memory](void*) { std::free(memory); }};
}

}  // namespace troupe
