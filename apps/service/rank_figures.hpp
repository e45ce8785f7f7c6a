// How fast each rank trains and how long it waits, as metrics of the job, so that clients of the
// service see them while the job runs.
#pragma once

#include <troupe/callback.hpp>

#include <chrono>
#include <cstdint>

namespace service {

/// Logs `rank/N/samples_per_second` and `rank/N/waiting_share` for every rank N at the steps that
/// report values, so they cost no collective of their own. Both are of the steps since the report
/// before, or since the epoch began. The waiting share is the part of that time that the rank's
/// lane spent in collectives. Ranks after the first `ranks_max` are left out.
class rank_figures : public troupe::callback {
public:
  static constexpr std::int32_t ranks_max = 64;

  bool reads_gradients() const override { return false; }
  void on_train_epoch_start(troupe::module& m, std::int64_t epoch) override;
  void on_train_batch_start(troupe::module& m, const troupe::batch& b, std::int64_t index) override;
  void on_train_batch_end(troupe::module& m, const troupe::step_output& output,
                          const troupe::batch& b, std::int64_t index) override;

private:
  using clock = std::chrono::steady_clock;
  void begin(const troupe::module& m);

  bool begun_ = false;
  clock::time_point since_;
  std::chrono::nanoseconds waited_{0};  // the strategy's counter at `since_`
  std::int64_t samples_ = 0;            // of this rank, since `since_`
  std::int64_t step_ = -1;              // of the newest batch
};

}  // namespace service
