// Waiting for a collective whose memory the waiter owns.
#pragma once

#include <thread>

#include "troupe/communicator.hpp"

namespace troupe {

/// Returns when nobody touches the memory of an aborted group any more. Ends by the port's promise:
/// whoever is at work looks at the abort word every 256 KiB.
inline void await_quiescence(const communicator& world) {
  while (!world.quiescent()) std::this_thread::yield();
}

/// Like work::wait; when it throws, the operation's memory may be freed.
inline void wait_for(const communicator& world, const work_ptr& operation) {
  try {
    operation->wait();
  } catch (...) {
    if (world.aborted()) await_quiescence(world);
    throw;
  }
}

}  // namespace troupe
