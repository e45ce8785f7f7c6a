// Callbacks that change the options of a job before its ranks start (callback::configure): early
// stopping, the policy of checkpoints, the schedule of accumulation. All ranks decide on these
// options at the same step, and a job that can restart keeps their state. Part of
// <troupe/callbacks.hpp>.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <utility>

#include "troupe/callback.hpp"
#include "troupe/options.hpp"

namespace troupe {

/// `early_stopping{{.monitor = "val/loss", .patience = 5}}`: an entry of
/// trainer_options::stop_early. Several monitor different values; each may end the run. A resumed
/// fit goes on counting.
class early_stopping : public callback {
public:
  /// Options that are impossible are refused when the job starts.
  explicit early_stopping(early_stopping_options how = {}) : how_(std::move(how)) {}
  /// Adds the entry. Throws user_error (bad_configuration) if there is one for the same value with
  /// other settings.
  void configure(trainer_options& options) const override;
  bool reads_gradients() const override { return false; }

private:
  early_stopping_options how_;
};

/// `model_checkpoint{{.keep_best = 3, .monitor = "val/accuracy", .maximize = true}}`: the policy
/// trainer_options::checkpoint. Without it that option holds. Without effect in a fast_dev_run.
class model_checkpoint : public callback {
public:
  /// Options that are impossible are refused when the job starts.
  explicit model_checkpoint(checkpoint_policy how = {}) : how_(std::move(how)) {}
  /// Sets the policy. Throws user_error (bad_configuration), with what differs, if there is another
  /// one than the default.
  void configure(trainer_options& options) const override;
  bool reads_gradients() const override { return false; }

private:
  checkpoint_policy how_;
};

/// `gradient_accumulation_scheduler{{0, 4}, {4, 2}}`: 4 micro-batches in a step, and 2 from epoch 4
/// on. It is trainer_options::accumulate_schedule. Before its first epoch a step has one
/// micro-batch.
class gradient_accumulation_scheduler : public callback {
public:
  /// By epoch, from 0: how many micro-batches a step has from there on, at least 1. Throws
  /// user_error (bad_configuration) for an empty schedule and for impossible numbers.
  /// @{
  gradient_accumulation_scheduler(
      std::initializer_list<std::pair<const std::int64_t, std::int64_t>> schedule)
      : gradient_accumulation_scheduler(std::map<std::int64_t, std::int64_t>{schedule}) {}
  explicit gradient_accumulation_scheduler(std::map<std::int64_t, std::int64_t> schedule);
  /// @}
  /// Sets the schedule. Throws user_error (bad_configuration) if there is another one, or if
  /// accumulate_grad_batches is set.
  void configure(trainer_options& options) const override;
  bool reads_gradients() const override { return false; }

private:
  std::map<std::int64_t, std::int64_t> schedule_;
};

}  // namespace troupe
