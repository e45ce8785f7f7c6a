// Lets a simulated communicator notify its rank's lane that an operation has ended.
#pragma once

#include <utility>

#include "backends/simulated/later.hpp"

namespace troupe {

/// One per incarnation of a rank, shared by its lane and its communicator. Not thread-safe.
class lane_bell {
public:
  /// Calls `call` at the next ring, once. Replaces an earlier call that was not made.
  void wait(later_call call) { waiting_ = std::move(call); }
  /// Makes the waiting call, if there is one.
  void ring() {
    if (auto call = std::exchange(waiting_, nullptr)) call.call_last();
  }
  bool waited_for() const { return static_cast<bool>(waiting_); }

private:
  later_call waiting_;
};

}  // namespace troupe
