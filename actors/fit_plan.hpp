// What a fit machine is to do: the trainer's options, digested once, the same on every rank.
#pragma once

#include "troupe/options.hpp"

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// How gradients are clipped. A plan without it does not clip.
struct clip_plan {
  double limit = 0;
  hooks::clip_gradients::algorithm how = hooks::clip_gradients::algorithm::norm;
  friend bool operator==(const clip_plan&, const clip_plan&) = default;
};

/// A regular value. Made by `make_plan`, which checks what it is given; tests may fill it by hand.
struct fit_plan {
  /// What the run is for: train (a fit), validate, test, predict or call.
  stage purpose = stage::train;
  std::int64_t max_epochs = 3;            ///< total; negative: no end but by steps
  std::optional<std::int64_t> max_steps;  ///< total
  std::int64_t min_epochs = 0;            ///< total, before a hook's or decider's stop counts
  std::int64_t min_steps = 0;             ///< the same
  std::int64_t accumulate = 1;            ///< micro-batches of one step, at least 1
  /// The same from an epoch on, by epoch.
  std::map<std::int64_t, std::int64_t> accumulate_schedule;
  std::optional<clip_plan> clip;
  batch_limit train_batches = 1.0;
  batch_limit val_batches = 1.0;  ///< per loader, like the next two
  batch_limit test_batches = 1.0;
  batch_limit predict_batches = 1.0;
  batch_limit val_check_interval = 1.0;  ///< a share or count of the limited training batches
  /// Learners say when a validation is due; the interval has no effect.
  bool val_by_time = false;
  /// Validations are in each n-th epoch; 0: the interval counts micro-batches across epochs.
  std::int64_t check_val_every_n_epoch = 1;
  std::int64_t sanity_batches = 2;  ///< per loader; negative: all
  std::vector<early_stopping_options> stop_early;
  checkpoint_policy checkpoint;
  /// The checkpoint a fit goes on from, or whose weights are evaluated; empty: none.
  std::string resume;
  bool begins_again = false;      ///< `resume` is of the same job, which no rank's state outlived
  bool one_hook_per_run = false;  ///< a run per hook (an optimizer_step keeps its closure)
  std::int64_t run_batches =
      64;  ///< the most micro-batches of one run, so that observers are notified often
  bool keeps_points = false;  ///< ranks can return to the last point (troupe::keeps_points)

  /// Micro-batches of one step in this epoch.
  std::int64_t accumulate_in(std::int64_t epoch) const;
  friend bool operator==(const fit_plan&, const fit_plan&) = default;
  /// The same for equal plans on every machine.
  std::uint64_t digest() const;
};
std::ostream& operator<<(std::ostream& out, const fit_plan& plan);
/// Throws user_error (bad_configuration) if `plan` accumulates batches that are split in time.
void refuse_accumulated_splits(const fit_plan& plan);

/// The plan of a run of `purpose`. `fast_dev_run` n: n batches of everything, one epoch, no sanity
/// check, no early stopping, no files. Throws user_error (bad_configuration) naming the option
/// whose value is impossible.
fit_plan make_plan(const trainer_options& options, stage purpose, std::string resume = {});

/// The hooks in which ranks have failed, with the rank. "": one that is not known.
using failed_hooks = std::set<std::pair<std::int32_t, std::string>>;
/// Of the drills of ranks that begin again those that cannot have happened yet: of steps that no
/// rank had begun, when so many were known to be done; and without a step, of hooks in which the
/// rank has not failed. A stall without a step may have passed without a failure.
std::vector<fault_drill> later_drills(std::vector<fault_drill> all, std::int64_t steps,
                                      const failed_hooks& failed);

/// Throws user_error (bad_configuration) when the checkpoint that a fit resumes from has finished
/// more epochs or steps than the plan has.
void check_finished(const fit_plan& plan, const loop_state& from);

}  // namespace troupe
