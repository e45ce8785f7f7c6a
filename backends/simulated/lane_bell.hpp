// Lets a simulated communicator notify its rank's lane that an operation has ended.
#pragma once

#include <utility>

#include "backends/simulated/later.hpp"

namespace troupe {

/// One per incarnation of a rank, shared by its lane and its communicator. Not thread-safe.
class lane_bell {
public:
  /// Calls `heard` at the next ring, once. Replaces an earlier call that was not made.
  void wait(later_call heard) { heard_ = std::move(heard); }
  /// Makes the waiting call, if there is one.
  void ring() {
    if (auto call = std::exchange(heard_, nullptr)) call.call_last();
  }
  bool waited_for() const { return static_cast<bool>(heard_); }

private:
  later_call heard_;
};

}  // namespace troupe
