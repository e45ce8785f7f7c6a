// A heap that forked children share: in a program with shared_heap.cpp, what the parent allocates
// with `new` lies at the same address in its children, and both see what the other writes there.
#pragma once

#include <cstddef>

namespace troupe::testing {

/// In a child, first of all: from now on it allocates for itself, and frees nothing of the
/// parent's.
void leave_shared_heap() noexcept;

/// What is allocated there; malloc's own figures know nothing of it.
std::size_t shared_heap_bytes() noexcept;

}  // namespace troupe::testing
