// A communicator for a lane that is a baton thread: waiting returns the baton.
#pragma once

#include <memory>

#include "backends/simulated/baton.hpp"
#include "troupe/communicator.hpp"

namespace troupe {

/// Submits to `inner`, a communicator of the simulated fabric. `wait` and `decide` rest in `thread`
/// until its owner continues it, then look again. After the thread was abandoned, a wait throws
/// generation_closed and the group counts as quiescent.
std::shared_ptr<communicator> blocking_communicator(std::shared_ptr<communicator> inner,
                                                    std::shared_ptr<baton_thread> thread);

}  // namespace troupe
