// A heap that forked children share. In a program with shared_heap.cpp, memory that the parent
// allocates with `new` has the same address in its children, and writes are visible to all of them.
#pragma once

#include <cstddef>

namespace troupe::testing {

/// To be called first in a child. From then on the child allocates from its own heap and never
/// frees memory of the parent.
void leave_shared_heap() noexcept;

/// The bytes allocated in the shared heap. They are not part of malloc's figures.
std::size_t shared_heap_bytes() noexcept;

}  // namespace troupe::testing
