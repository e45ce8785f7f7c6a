#include "tests/support/footprint.hpp"

#include <dirent.h>
#include <malloc.h>

#include <algorithm>
#include <stdexcept>

namespace troupe::testing {

namespace {

std::ptrdiff_t entries(const char* folder) {
  auto* open = opendir(folder);
  if (!open) throw std::runtime_error("cannot list open descriptors or threads");
  std::ptrdiff_t count = 0;
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

std::size_t allocated() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 0;
#else
  const auto heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
#endif
}

}  // namespace

footprint footprint_now() {
  return {allocated(), entries("/proc/self/fd"), entries("/proc/self/task")};
}

footprint least_of(const footprint& a, const footprint& b) {
  return {std::min(a.bytes, b.bytes), std::min(a.descriptors, b.descriptors),
          std::min(a.threads, b.threads)};
}

}  // namespace troupe::testing
