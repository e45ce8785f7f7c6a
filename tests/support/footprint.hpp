// What a process holds, to detect leaks.
#pragma once

#include <cstddef>

namespace troupe::testing {

struct footprint {
  std::size_t bytes = 0;  ///< allocated with malloc, including what threads cache
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t threads = 0;
};

/// The footprint of this process now. Under sanitizers, which have their own heap, `bytes` is 0.
footprint footprint_now();

/// The least of each figure. The memory that threads cache varies, but leaked memory never shrinks.
footprint least_of(const footprint& a, const footprint& b);

}  // namespace troupe::testing
