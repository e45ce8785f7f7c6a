// Finds a learning rate and a batch size by short fits.
//
//   troupe::learning_rate_range range;
//   troupe::torch_plugins with{.callbacks = {range}};
//   troupe::trainer trainer{range.options({.ranks = 2})};
//   auto curve = troupe::curve_of(trainer.fit<classifier>(with, data));
//   auto rate = curve.suggestion();  // empty: too few losses
//
//   auto size = troupe::find_batch_size({}, [&](std::int64_t batch_size) {
//     troupe::trainer trainer{{.max_steps = 3, .batch_size = batch_size}};
//     return troupe::fits_memory(trainer.fit<classifier>(data));
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "troupe/callback.hpp"
#include "troupe/options.hpp"
#include "troupe/outcome.hpp"

namespace troupe {

// --- the learning rate ---------------------------------------------------------------------------

/// Lightning's lr_find has these, with these defaults.
struct learning_rate_range_options {
  /// The first rate, above 0.
  double min = 1e-8;
  /// The last rate, above `min`.
  double max = 1;
  std::int64_t steps = 100;  ///< num_training
  /// From one rate to the next: times or plus a constant.
  enum class growth : std::uint8_t { exponential, linear };
  /// Lightning's `mode`.
  growth mode = growth::exponential;
  /// early_stop_threshold: the fit stops when a loss is more than so many times the least one.
  std::optional<double> stop_at = 4.0;
};

/// Raises the rate of the optimizer step by step, whatever the module's schedulers do, and notes
/// the loss of rank 0, smoothed as Lightning smooths it. Both are in job_outcome::queue at the end.
/// For a job without restarts.
class learning_rate_range : public callback {
public:
  /// Throws user_error (bad_configuration) unless 0 < min < max and steps > 1.
  explicit learning_rate_range(learning_rate_range_options how = {});
  /// `base` with so many steps, without validations and checkpoints, and without what would end the
  /// fit at another step: min_epochs, min_steps, max_time, overfit_batches and fast_dev_run.
  trainer_options options(trainer_options base) const;

  void on_train_batch_start(module& m, const batch& b, std::int64_t index) override;
  void on_train_batch_end(module& m, const step_output& output, const batch& b,
                          std::int64_t index) override;
  void on_train_end(module& m) override;
  bool reads_gradients() const override { return false; }

private:
  double rate_of(std::int64_t step) const;

  learning_rate_range_options how_;
  std::vector<double> rates_;
  std::vector<double> losses_;
  double average_ = 0;
  std::optional<double> least_;
};

/// Rates and the losses that they had.
struct learning_rate_curve {
  /// In the order of the steps.
  std::vector<double> rates;
  std::vector<double> losses;  ///< as many; NaN: rank 0 had no loss in that step, or NaN

  /// The rate at which the loss falls most steeply, as Lightning suggests it. Empty with fewer than
  /// two finite losses between the first `skip_begin` and the last `skip_end`.
  std::optional<double> suggestion(std::size_t skip_begin = 10, std::size_t skip_end = 1) const;
};

/// What a learning_rate_range noted. Throws what job_outcome::rethrow throws if the job failed, and
/// user_error (job_failed) if it had no such callback.
learning_rate_curve curve_of(const job_outcome& outcome);

// --- the batch size ------------------------------------------------------------------------------

/// Lightning's scale_batch_size has these.
struct batch_size_search {
  /// power: doubled until it does not fit. bisect (Lightning's binsearch): then between the last
  /// two, less `margin` of it.
  enum class search : std::uint8_t { power, bisect };
  /// Lightning's `mode`.
  search mode = search::power;
  std::int64_t first = 2;        ///< init_val
  std::int64_t max_trials = 25;  ///< at least 1
  /// bisect: the share that is taken off the size found; at least 0, below 1.
  double margin = 0.05;
  std::int64_t max = 8192;  ///< max_val
};

/// The largest size of the search for which `fits` returned true; `margin` may lower it. Unlike
/// Lightning it never returns a size above one that was tried. Throws user_error (job_failed) if
/// not even 1 fits, and what `fits` throws.
std::int64_t find_batch_size(const batch_size_search& how,
                             const std::function<bool(std::int64_t)>& fits);

/// True for a job that did not fail, false for one that ran out of memory. Throws what
/// job_outcome::rethrow throws for any other.
bool fits_memory(const job_outcome& outcome);

}  // namespace troupe
