// Communicators in processes of their own, used from the test's process: a call on a handle is
// performed in the rank's process. Needs shared_heap.cpp, so that buffers are the same memory in
// all processes.
#pragma once

#include "tests/support/footprint.hpp"
#include "troupe/communicator.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace troupe::testing {

/// Forks a process for each of `ranks`; `make` runs there. Must be constructed while this process
/// has no other thread. `allocate` returns memory of this process.
std::shared_ptr<communicator_backend> make_process_backend(
    std::int32_t ranks, std::function<std::shared_ptr<communicator_backend>()> make);

/// The footprint of each of its processes, by rank. Empty for another backend.
std::vector<footprint> rank_footprints(const communicator_backend& backend);

/// False under sanitizers, which do not support it.
bool have_rank_processes();

}  // namespace troupe::testing
