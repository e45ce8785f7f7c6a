// What a process holds, to see whether what comes and goes leaves something behind.
#pragma once

#include <cstddef>

namespace troupe::testing {

struct footprint {
  std::size_t bytes = 0;  ///< allocated with malloc, what threads keep to themselves included
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t threads = 0;
};

/// Of this process, now. Under sanitizers, whose heap is their own, `bytes` is 0.
footprint footprint_now();

/// The least that each of several footprints had: what a thread keeps of memory that others gave
/// back moves to and fro, what is lost never comes back.
footprint least_of(const footprint& a, const footprint& b);

}  // namespace troupe::testing
