// Memory of this process for buckets: what communicators give that have none of their own.
#pragma once

#include <cstddef>
#include <memory>

namespace troupe {

/// Aligned to a cache line; from 4 MiB on to a huge page, which the kernel is asked for if
/// `huge_pages`. Contents undefined. Throws std::bad_alloc.
std::shared_ptr<void> allocate_bucket(std::size_t bytes, bool huge_pages);

}  // namespace troupe
