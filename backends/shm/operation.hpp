// One rank's view of one collective.
#pragma once

#include "backends/collective/group_end.hpp"
#include "backends/collective/submission.hpp"
#include "backends/collective/waiting.hpp"

#include <memory>
#include <optional>

namespace troupe::shm {

class channel;

using collectives::submission;

/// Ended by the thread that drives its channel. Keeps its channel alive.
class operation final : public work {
public:
  operation(std::shared_ptr<channel> in, submission what, std::uint64_t number,
            std::chrono::nanoseconds deadline)
      : what(std::move(what)), number(number), deadline(deadline), channel_(std::move(in)) {}
  ~operation() override;

  work_result poll() override;
  void wait() override;

  const submission what;
  const std::uint64_t number;  ///< of those of its channel
  const std::chrono::nanoseconds deadline;
  collectives::outcome how;
  bool verdict = false;  ///< decide: valid when it ended well

  // For the thread that drives the channel: when the deadline passes, and the channel's position
  // when that time was set.
  std::optional<shared_bell::clock::time_point> until;
  std::uint64_t come_to = 0;

private:
  const std::shared_ptr<channel> channel_;
};

}  // namespace troupe::shm
