// How a simulated communicator tells the lane of its rank that what it waits for has ended.
#pragma once

#include <utility>

#include "backends/simulated/later.hpp"

namespace troupe {

/// One per life of a rank; shared by its lane and its communicator. Not thread-safe: one world, one
/// thread.
class lane_bell {
public:
  /// The lane hears the next ring, and only that. A former one that was not rung is dropped.
  void wait(later_call heard) { heard_ = std::move(heard); }
  /// Calls whoever waits, within the call.
  void ring() {
    if (auto call = std::exchange(heard_, nullptr)) call.call_last();
  }
  bool waited_for() const { return static_cast<bool>(heard_); }

private:
  later_call heard_;
};

}  // namespace troupe
