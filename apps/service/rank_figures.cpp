#include "apps/service/rank_figures.hpp"

#include <troupe/module.hpp>
#include <troupe/strategy.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace service {

void rank_figures::begin(const troupe::module& m) {
  begun_ = true;
  since_ = clock::now();
  waited_ = m.strategy_in_use()->waited();
  samples_ = 0;
}

void rank_figures::on_train_epoch_start(troupe::module& m, std::int64_t) { begin(m); }

void rank_figures::on_train_batch_start(troupe::module& m, const troupe::batch&, std::int64_t) {
  // After a failure steps are done again: the recovery's time belongs to no step.
  if (!begun_ || m.at().step < step_) begin(m);
  step_ = m.at().step;
}

void rank_figures::on_train_batch_end(troupe::module& m, const troupe::step_output&,
                                      const troupe::batch& b, std::int64_t) {
  samples_ += b.samples();
  const auto step = m.at().step;
  const auto every = m.strategy_in_use()->about().options.log_every_n_steps;
  if (step == step_ || step % std::max<std::int64_t>(every, 1) != 0) return;
  const std::chrono::duration<double> took = clock::now() - since_;
  const std::chrono::duration<double> waited = m.strategy_in_use()->waited() - waited_;
  const bool known = took.count() > 0;
  const auto rate = known ? static_cast<double>(samples_) / took.count() : 0;
  const auto share = known ? std::clamp(waited / took, 0.0, 1.0) : 0;
  // Ranks that log at all log the same names: each rank counts only in its own.
  for (std::int32_t rank = 0; rank < std::min(m.world(), ranks_max); ++rank) {
    const double mine = rank == m.rank() ? 1 : 0;
    m.log_ratio(fmt::format("rank/{}/samples_per_second", rank), mine * rate, mine);
    m.log_ratio(fmt::format("rank/{}/waiting_share", rank), mine * share, mine);
  }
  begin(m);
}

}  // namespace service
