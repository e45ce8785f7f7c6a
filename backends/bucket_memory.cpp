#include "backends/bucket_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

namespace troupe {

std::shared_ptr<void> allocate_bucket(std::size_t bytes, bool huge_pages) {
  constexpr std::size_t line = 64;
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  constexpr std::size_t huge_from = std::size_t{4} << 20;
  const auto alignment = bytes >= huge_from ? huge_page : line;
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc{};
  const auto rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  std::shared_ptr<void> memory{std::aligned_alloc(alignment, rounded), std::free};
  if (!memory) throw std::bad_alloc{};
  // A wish: where it is not granted, memory is slower and otherwise the same.
  if (huge_pages && alignment == huge_page) madvise(memory.get(), rounded, MADV_HUGEPAGE);
  return memory;
}

}  // namespace troupe
