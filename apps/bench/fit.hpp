// `troupe bench fit`: the same job on one rank, on several, and on several without an exchange, in
// turn.
#pragma once

#include "apps/bench/timing.hpp"

#include <string>
#include <vector>

namespace troupe::program {

struct fit_figures {
  double samples_per_second = 0;  ///< of all ranks, after the first two steps
  double waiting_share = 0;       ///< the largest of a rank
  std::string communicator;
};

struct fit_row {
  timing one_rank;  ///< samples per second
  timing all_ranks;
  timing waiting;
  std::string communicator;
  double speed_up = 0;  ///< median of the rounds' ratios
  double speed_up_spread = 0;
  /// All ranks without sums of gradients, with one barrier per step. The waiting that remains is
  /// due to cores of unequal speed, and no exchange can avoid it.
  timing apart;
  timing apart_waiting;
  double apart_speed_up = 0;
};
/// Sums up rounds, each of one rank, of all ranks and of all ranks apart.
fit_row fit_summary(const std::vector<fit_figures>& one_rank,
                    const std::vector<fit_figures>& all_ranks,
                    const std::vector<fit_figures>& apart);

}  // namespace troupe::program
