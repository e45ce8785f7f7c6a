// The process-control port: where a rank comes to life. Threads of this process now; children and
// host agents start something that runs the same rank actor and speaks through a link.
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

/// Starts ranks. `start` never waits; `body` is what an adapter that runs ranks inside this process
/// calls (on the caller's thread or later) to bring the rank's actor to life; `failed` is called
/// instead, once, with the reason.
class process_control {
public:
  virtual ~process_control() = default;
  virtual void start(const rank_start& what, std::function<void()> body,
                     std::function<void(std::string why)> failed) = 0;
};

}  // namespace troupe
