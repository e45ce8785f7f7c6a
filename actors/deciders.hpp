// What may change a run, decided by pure functions from values that are the same on every rank:
// when to stop early, when to take a snapshot, which checkpoints to keep. Thread-safe.
#pragma once

#include "troupe/detail/loop_state.hpp"
#include "troupe/options.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// A state for each of `options`, in their order: the one in `saved` with the same monitor and
/// direction, or one of an earlier version in the same place; a new one if there is none.
std::vector<early_stopping_state> stop_early_states(std::span<const early_stopping_options> options,
                                                    std::vector<early_stopping_state> saved);

/// Throws user_error (bad_configuration) that lists what was logged when a monitor is not among
/// `logged`.
void check_monitors(std::span<const early_stopping_options> options, const metrics& logged);
/// One check of an early-stopping decider, made when a validation or an epoch has ended. Changes
/// `state`; true when the run is to end. Improved: better than the best so far by more than
/// `min_delta`; the first number always is. NaN never is. Throws as check_monitors does.
bool check_early_stopping(const early_stopping_options& options, early_stopping_state& state,
                          const metrics& logged);

/// Where a run stands when a checkpoint may be due.
struct checkpoint_moment {
  std::int64_t steps = 0;
  bool epoch_ended = false;  ///< the boundary after an epoch's last hook
  bool run_ends = false;     ///< the last boundary of the run
};
/// Whether a snapshot is taken now. One per epoch, one every n steps, one at the end, as the policy
/// says; never a second one of the same step (`last_saved`, undefined when there is none yet).
bool checkpoint_due(const checkpoint_policy& policy, const checkpoint_moment& now,
                    std::int64_t last_saved);

/// The number by which keep_best compares a snapshot of `loop`; none if `monitor` was measured of
/// other weights. A value of a validation counts for the step at which it was measured, the last
/// one of training until the end of its epoch. A checkpoint of an earlier version, or of a run with
/// another monitor, does not say where: its value counts.
std::optional<double> monitored_by(const std::string& monitor, const loop_state& loop);

/// A checkpoint that is durable.
struct kept_checkpoint {
  std::int64_t step = 0;
  std::string path;
  bool has_monitor = false;  ///< the policy's monitor was measured of it (monitored_by)
  double monitor = 0;
  friend bool operator==(const kept_checkpoint&, const kept_checkpoint&) = default;
};

/// The best by the policy's monitor, null while none has one. NaN counts as worst; of equals the
/// older one.
const kept_checkpoint* best_checkpoint(std::span<const kept_checkpoint> kept,
                                       const checkpoint_policy& policy);
/// At most so many snapshots wait because keep_best would keep them: memory is bounded whatever
/// keep_best is.
inline constexpr std::size_t waiting_best_limit = 4;
/// Whether the snapshot `one`, which waits, must not be replaced by a newer one: it would be among
/// the best `keep_best` of itself, `waiting` and `others` (durable or being written), and is among
/// the best `waiting_best_limit` of those that wait. `waiting` may contain `one`.
bool waits_as_best(const kept_checkpoint& one, std::span<const kept_checkpoint> waiting,
                   std::span<const kept_checkpoint> others, const checkpoint_policy& policy);
/// keep_best compares the policy's monitor. Throws user_error (bad_configuration) with the logged
/// names if keep_best is used and the monitor is neither the default one nor in `logged`. Called at
/// the ends of epochs, from the first one with a validation on, after their last metric.
void check_monitor(const checkpoint_policy& policy, const metrics& logged);
/// Steps of the checkpoints to remove, ascending: all that are neither among the newest `keep_last`
/// nor among the best `keep_best`. The newest is always kept (`latest` points to it); a negative
/// number keeps all.
std::vector<std::int64_t> to_remove(std::span<const kept_checkpoint> kept,
                                    const checkpoint_policy& policy);

}  // namespace troupe
