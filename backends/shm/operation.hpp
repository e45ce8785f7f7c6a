// One rank's view of one collective.
#pragma once

#include "backends/collective/collective_call.hpp"
#include "backends/collective/waiting.hpp"

#include <atomic>
#include <memory>
#include <optional>

namespace troupe::shm {

class channel;

/// What a rank brings to a collective.
struct submission {
  collective_call call;
  const void* in = nullptr;  ///< all_reduce, broadcast: the same as `out`
  void* out = nullptr;
  bool yes = false;
};

/// Ends once, by its channel's driver. Keeps its channel alive.
class operation final : public work {
public:
  operation(std::shared_ptr<channel> in, submission what, std::uint64_t number,
            std::chrono::nanoseconds deadline)
      : what(std::move(what)), number(number), deadline(deadline), channel_(std::move(in)) {}
  ~operation() override;

  work_result poll() override;
  void wait() override;

  work_status status() const { return status_.load(std::memory_order_seq_cst); }
  bool pending() const { return status() == work_status::pending; }
  void end(work_result how) {
    result_ = std::move(how);
    status_.store(result_.status, std::memory_order_seq_cst);
  }

  const submission what;
  const std::uint64_t number;  ///< of those of its channel
  const std::chrono::nanoseconds deadline;
  bool verdict = false;  ///< decide: valid when it ended well

  // The clock, for whoever drives the channel: when to look, and how far the channel had come then.
  std::optional<shared_bell::clock::time_point> until;
  std::uint64_t come_to = 0;

private:
  const std::shared_ptr<channel> channel_;
  work_result result_;
  std::atomic<work_status> status_{work_status::pending};
};

}  // namespace troupe::shm
