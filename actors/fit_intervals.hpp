// How long the parts of a run are, in micro-batches, and when a validation or a checkpoint is due:
// what follows from the plan, the learner's loaders and the state of the loop. A part of the fit
// machine.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/fit_plan.hpp"
#include "messages/lane.hpp"
#include "troupe/outcome.hpp"

namespace troupe {

/// The loaders that the learner named, and where it resumed an epoch of them. A regular value.
struct loader_table {
  std::vector<loader_length> all;
  std::int64_t resumed_epoch = undefined;
  std::int64_t resumed_batch = 0;   ///< micro-batches of that epoch that were done before
  std::int64_t resumed_cursor = 0;  ///< samples of it that were consumed before

  /// Takes what a run reported. Throws internal_error for a loader that is not known, unless
  /// `may_add`.
  void learn(const std::vector<loader_length>& reported, bool may_add);
  /// The epoch of `loop` goes on from there.
  void resume(const loop_state& loop);
  friend bool operator==(const loader_table&, const loader_table&) = default;
};

/// What hooks asked for, the same on all ranks. A regular value.
struct hook_requests {
  stop_reason stop = stop_reason::none;  ///< of a hook or of early stopping: the first one counts
  bool save = false;                     ///< by the clock
  bool validate = false;                 ///< by the clock
  void take(const hook_outcome& outcome);
  /// Takes the stop that a checkpoint keeps out of its loop; `again`: the job wrote it itself.
  void take(loop_state& restored, bool again);
  /// After a validation for the values that validations log, after an epoch (`validated` false) for
  /// all others.
  void stop_early(const fit_plan& plan, bool validated, loop_state& loop);
  friend bool operator==(const hook_requests&, const hook_requests&) = default;
};

/// A view of a fit machine's members. Every function is pure.
class fit_intervals {
public:
  fit_intervals(const fit_plan& plan, const loader_table& loaders, const loop_state& loop)
      : plan_(plan), loaders_(loaders), loop_(loop) {}

  /// Batches of this loader in one pass, after limits; those before a resume included.
  std::int64_t batches_of(const loader_length& loader, stage s) const;
  /// The same, over all loaders of the stage.
  std::int64_t batches_of(stage s) const;
  std::int64_t train_batches() const { return batches_of(stage::train); }
  /// Where the accumulation window in progress ends.
  std::int64_t window_end() const;
  /// Where a run of hooks ends that begins at micro-batch `first`: with the window, after
  /// fit_plan::run_batches, or at a validation.
  std::int64_t span_end(std::int64_t first) const;

  /// Micro-batches between two validations; 0: there is none.
  std::int64_t validation_interval() const;
  /// Whether the interval ends after so many micro-batches of the epoch.
  bool validation_due_after(std::int64_t batches) const;
  /// The same at the boundary of a step, where a request counts, too.
  bool validation_due(const hook_requests& requests) const;
  /// After the end of an epoch: everything that the run logs was logged once.
  bool validation_was_due() const;
  /// In an epoch whose end is not validated, a validation that has measured the monitor counts as
  /// an end, so that keep_best has snapshots to choose from.
  bool save_due(const hook_requests& requests, std::int64_t last_saved, bool epoch_ended) const;

  bool limits_reached() const;
  /// A hook or early stopping may end the run.
  bool may_stop() const;
  /// The loop as a checkpoint keeps it: with a stop that waits, so that a resumed run ends where
  /// this one would.
  loop_state saved_loop(const hook_requests& requests) const;

private:
  std::int64_t epoch_batches(const loader_length& loader) const;
  std::int64_t interval_counted() const;
  bool validates_in_epoch() const;
  bool measured_inside_epoch() const;

  const fit_plan& plan_;
  const loader_table& loaders_;
  const loop_state& loop_;
};

}  // namespace troupe
