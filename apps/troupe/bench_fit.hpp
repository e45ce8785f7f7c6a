// `troupe bench fit`: the same job on one rank and on several, in turn.
#pragma once

#include "actors/job.hpp"
#include "apps/troupe/bench_timing.hpp"
#include "backends/ports.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::program {

/// Adds up the time that lanes spend waiting for collectives, by standing between them and any
/// communicator. One per job. Thread-safe.
class wait_watch {
public:
  explicit wait_watch(std::int32_t ranks);
  ~wait_watch();

  /// The ports with every communicator watched.
  ports watch(ports world) const;
  /// Tells the watch about hooks: waiting counts from the first batch of step 2 on, to the last.
  std::function<void(std::int32_t rank, const hook& what)> trace() const;

  /// The largest share of training time that a rank waited; 0 before step 3. Ask when the job has
  /// ended.
  double share() const;
  /// The communicator that was opened; empty: none.
  std::string communicator() const;

  struct state;

private:
  std::shared_ptr<state> state_;
};

struct fit_figures {
  double samples_per_second = 0;  ///< of all ranks, after the first two steps
  double waiting_share = 0;
  std::string communicator;
};

struct fit_row {
  timing one_rank;  ///< samples per second
  timing all_ranks;
  timing waiting;
  std::string communicator;
  double speed_up = 0;  ///< median of the rounds' ratios
  double speed_up_spread = 0;
};
/// Sums up rounds, each of one rank and then of all ranks.
fit_row fit_summary(const std::vector<fit_figures>& one_rank,
                    const std::vector<fit_figures>& all_ranks);

}  // namespace troupe::program
