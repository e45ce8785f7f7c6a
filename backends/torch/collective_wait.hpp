// Waits for a collective whose memory belongs to the waiting code.
#pragma once

#include <thread>

#include "troupe/communicator.hpp"

namespace troupe {

/// Returns when no thread touches the memory of an aborted group any more. The communicator port
/// promises that this ends: a working thread checks the abort flag every 256 KiB.
inline void await_quiescence(const communicator& world) {
  while (!world.quiescent()) std::this_thread::yield();
}

/// Like work::wait. After it has thrown, the operation's memory may be freed.
inline void wait_for(const communicator& world, const work_ptr& operation) {
  try {
    operation->wait();
  } catch (...) {
    if (world.aborted()) await_quiescence(world);
    throw;
  }
}

}  // namespace troupe
