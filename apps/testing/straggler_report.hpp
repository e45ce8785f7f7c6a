// How fast a run's steps went, and who kept the others waiting.
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
  /// A node's share in the waiting.
  struct straggler {
    std::int32_t host = 0;               ///< rank / ranks of a node
    std::int32_t rank = 0;               ///< the one of it that came last most often
    std::uint64_t times = 0;             ///< operations that waited for it
    std::chrono::nanoseconds waited{0};  ///< that all others did, in sum
  };

  straggler_report() = default;
  /// 0 and 1: each rank is a node of its own.
  explicit straggler_report(std::uint32_t ranks_per_host);

  /// An operation of all ranks, as they came to it. What it would have gained had the last node
  /// been as early as the last but one is that node's. Waiting counts once, however many operations
  /// share it.
  void met(std::span<const arrival> who);
  /// Behind each step of each rank.
  void stepped(job_id job, std::int32_t rank, std::int64_t step, std::chrono::nanoseconds now);

  /// From one step of rank 0 to its next, on average over all attempts; 0 before there were two.
  std::chrono::nanoseconds step_time() const;
  /// Steps that it is the average of.
  std::int64_t steps() const { return steps_; }
  /// Who was waited for, the worst first.
  std::vector<straggler> blame() const;
  /// Both, in one line; empty without steps.
  std::string text() const;

private:
  struct share {
    std::chrono::nanoseconds waited{0};
    std::map<std::int32_t, std::uint64_t> last;  // by rank: how often
  };
  std::int32_t ranks_per_host_ = 1;
  std::map<std::int32_t, share> shares_;  // by node
  std::chrono::nanoseconds charged_until_{0};
  job_id job_;
  std::int64_t last_step_ = -1;
  std::chrono::nanoseconds last_at_{0};
  std::chrono::nanoseconds took_{0};
  std::int64_t steps_ = 0;
};

}  // namespace troupe::testing
