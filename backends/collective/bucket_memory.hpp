// Memory of this process for buckets: what communicators give that have none of their own.
#pragma once

#include <cstddef>
#include <memory>

namespace troupe {

/// Aligned to a cache line; from 4 MiB on in huge pages, which the kernel is asked for if
/// `huge_pages`. Contents undefined. Throws std::bad_alloc.
///
/// `rank`: a communicator adds up large memory of several ranks. Each rank asks with its own number
/// and gets memory that first-level caches do not mix up (see `bucket_offset`).
std::shared_ptr<void> allocate_bucket(std::size_t bytes, bool huge_pages, std::size_t rank = 0);

/// How far behind a page or huge page a rank's memory begins. First-level caches guess which line
/// they hold by a hash of address bits 12 to 27, and what has the same hash and the same place in
/// its page pushes each other out: sums of two arrays 256 MiB apart took 11 times as long as
/// others, 128 MiB and a page apart 7 times. So ranks begin in different pages, and as far from
/// each other within them as their number allows. Repeats after 16.
std::size_t bucket_offset(std::size_t rank);

}  // namespace troupe
