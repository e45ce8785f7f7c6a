// Communicators that live in processes of their own, used from here: what a test calls on a handle
// is done in the rank's process. Needs shared_heap.cpp, so that buffers are the same memory there.
#pragma once

#include "tests/support/footprint.hpp"
#include "troupe/communicator.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace troupe::testing {

/// Forks a process for each of `ranks`; `make` runs there. To be constructed while this process
/// has no other thread. `allocate` gives memory of this process.
std::shared_ptr<communicator_backend> make_process_backend(
    std::int32_t ranks, std::function<std::shared_ptr<communicator_backend>()> make);

/// What each of its processes holds, by rank; empty for another backend.
std::vector<footprint> rank_footprints(const communicator_backend& backend);

/// False under sanitizers, which do not follow.
bool have_rank_processes();

}  // namespace troupe::testing
