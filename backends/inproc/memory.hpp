// Memory for buckets that ranks of one process reduce in place.
#pragma once

#include <cstddef>
#include <memory>

namespace troupe::inproc {

/// Aligned to a cache line; from 4 MiB on to a huge page, which the kernel is asked for if
/// `huge_pages`. Contents undefined. Throws std::bad_alloc.
std::shared_ptr<void> allocate(std::size_t bytes, bool huge_pages);

}  // namespace troupe::inproc
