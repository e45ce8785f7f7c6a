// A communicator for a lane that is a baton thread: waiting gives the baton back.
#pragma once

#include <memory>

#include "backends/simulated/baton.hpp"
#include "troupe/communicator.hpp"

namespace troupe {

/// What is submitted goes to `inner`, a communicator of the simulated fabric; `wait` and `decide`
/// rest in `thread` until its owner lets it go on, and look again. Once the thread is abandoned a
/// wait throws generation_closed and the group counts as quiescent.
std::shared_ptr<communicator> blocking_communicator(std::shared_ptr<communicator> inner,
                                                    std::shared_ptr<baton_thread> thread);

}  // namespace troupe
