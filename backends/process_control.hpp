// The process-control port: decides when and where a rank's actor is started.
#pragma once

#include "messages/fence.hpp"

#include <functional>
#include <string>
#include <system_error>

namespace troupe {

/// One life of a rank to be started.
struct rank_start {
  job_id job;
  std::int32_t rank = 0;
  std::int32_t world = 1;
  incarnation_id incarnation;
};

/// Starts ranks. `start` does not block. The adapter calls `body`, on the caller's thread or later,
/// to start the rank's actor, or calls `failed` once with the reason why it cannot.
class process_control {
public:
  virtual ~process_control() = default;
  virtual void start(const rank_start& what, std::function<void()> body,
                     std::function<void(std::string why)> failed) = 0;
};

}  // namespace troupe
