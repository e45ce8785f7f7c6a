// Step times of a run, and the hosts that delayed it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backends/simulated/fabric.hpp"
#include "messages/fence.hpp"

namespace troupe::testing {

class straggler_report {
public:
  /// A host that others waited for.
  struct straggler {
    std::int32_t host = 0;               ///< rank / ranks of a host
    std::int32_t rank = 0;               ///< its rank that was last most often
    std::uint64_t times = 0;             ///< operations that waited for it
    std::chrono::nanoseconds waited{0};  ///< sum over all waiting ranks
  };

  straggler_report() = default;
  /// 0 and 1: each rank counts as a host.
  explicit straggler_report(std::uint32_t ranks_per_host);

  /// All ranks have arrived at an operation. Charges the slowest host with the gap to the second
  /// slowest. Time counts once, however many operations overlap.
  void met(std::span<const arrival> who);
  /// Called after each step of each rank.
  void stepped(job_id job, std::int32_t rank, std::int64_t step, std::chrono::nanoseconds now);

  /// Average time between steps of rank 0 over all attempts; 0 before the second step.
  std::chrono::nanoseconds step_time() const;
  /// Number of steps in that average.
  std::int64_t steps() const { return steps_; }
  /// Hosts that others waited for, the worst first.
  std::vector<straggler> blame() const;
  /// Both in one line; empty without steps.
  std::string text() const;

private:
  struct share {
    std::chrono::nanoseconds waited{0};
    std::map<std::int32_t, std::uint64_t> last;  // by rank: how often it arrived last
  };
  std::int32_t ranks_per_host_ = 1;
  std::map<std::int32_t, share> shares_;  // by host
  std::chrono::nanoseconds charged_until_{0};
  job_id job_;
  std::int64_t last_step_ = -1;
  std::chrono::nanoseconds last_at_{0};
  std::chrono::nanoseconds took_{0};
  std::int64_t steps_ = 0;
};

}  // namespace troupe::testing
