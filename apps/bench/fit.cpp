#include "apps/bench/fit.hpp"

#include <utility>

namespace troupe::program {

namespace {

timing of(const std::vector<fit_figures>& rounds, double fit_figures::*field) {
  std::vector<double> values;
  for (const auto& one : rounds) values.push_back(one.*field);
  return summary(std::move(values));
}

timing speed_up_of(const std::vector<fit_figures>& many, const std::vector<fit_figures>& one) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < one.size(); ++round)
    if (one[round].samples_per_second > 0)
      ratios.push_back(many[round].samples_per_second / one[round].samples_per_second);
  return summary(std::move(ratios));
}

}  // namespace

fit_row fit_summary(const std::vector<fit_figures>& one_rank,
                    const std::vector<fit_figures>& all_ranks,
                    const std::vector<fit_figures>& apart) {
  const auto speed_up = speed_up_of(all_ranks, one_rank);
  return {of(one_rank, &fit_figures::samples_per_second),
          of(all_ranks, &fit_figures::samples_per_second),
          of(all_ranks, &fit_figures::waiting_share),
          all_ranks.empty() ? std::string{} : all_ranks.back().communicator,
          speed_up.median,
          speed_up.spread,
          of(apart, &fit_figures::samples_per_second),
          of(apart, &fit_figures::waiting_share),
          speed_up_of(apart, one_rank).median};
}

}  // namespace troupe::program
