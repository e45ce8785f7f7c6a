#include "apps/troupe/bench_fit.hpp"

namespace troupe::program {

fit_row fit_summary(const std::vector<fit_figures>& one_rank,
                    const std::vector<fit_figures>& all_ranks) {
  std::vector<double> one;
  std::vector<double> all;
  std::vector<double> waiting;
  std::vector<double> ratios;
  for (std::size_t round = 0; round < one_rank.size(); ++round) {
    one.push_back(one_rank[round].samples_per_second);
    all.push_back(all_ranks[round].samples_per_second);
    waiting.push_back(all_ranks[round].waiting_share);
    if (one.back() > 0) ratios.push_back(all.back() / one.back());
  }
  fit_row row{summary(one), summary(all), summary(waiting), {}, 0, 0};
  if (!all_ranks.empty()) row.communicator = all_ranks.back().communicator;
  const auto speed_up = summary(ratios);
  row.speed_up = speed_up.median;
  row.speed_up_spread = speed_up.spread;
  return row;
}

}  // namespace troupe::program
