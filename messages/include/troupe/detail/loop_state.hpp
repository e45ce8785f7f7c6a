// The position of a fit: what the fit machine saves with a checkpoint and resumes from.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "troupe/detail/position.hpp"
#include "troupe/failure.hpp"

namespace troupe {

/// Last reduced value of each logged name, the same on all ranks.
using metrics = std::map<std::string, double>;

/// State of one early-stopping decider.
struct early_stopping_state {
  double best = 0;
  bool has_best = false;
  std::int32_t waited = 0;  ///< checks without improvement
  /// What it is of: early_stopping_options. Empty in a checkpoint of an earlier version.
  std::string monitor;
  bool maximize = false;
  friend bool operator==(const early_stopping_state&, const early_stopping_state&) = default;
};

/// Where the last value of checkpoint_policy::monitor was measured.
struct monitor_mark {
  std::string monitor;      ///< empty: nowhere yet, or a checkpoint of an earlier version
  std::int64_t step = -1;   ///< optimizer steps done then; -1: not known
  std::int64_t epoch = -1;  ///< the epoch of a value of training; -1: a value of a validation
  friend bool operator==(const monitor_mark&, const monitor_mark&) = default;
};

/// A step boundary of a fit. It is committed when every member of the generation holds `steps`.
struct loop_state {
  std::int64_t epoch = 0;    ///< the epoch to continue with
  std::int64_t batch = 0;    ///< the first micro-batch of that epoch not consumed yet
  std::int64_t steps = 0;    ///< optimizer steps done
  std::int64_t samples = 0;  ///< consumed in committed steps, all ranks, all epochs
  bool validated = false;    ///< validation due at this boundary is already done
  metrics last;              ///< last reduced values, for deciders and plateau schedulers
  std::vector<early_stopping_state> early_stopping;  ///< in the order of the options
  /// Samples of that epoch that all ranks consumed: where in the epoch's order micro-batch `batch`
  /// begins, whatever ranks and batch size cut it from here on. -1: not known (a checkpoint of an
  /// earlier version).
  std::int64_t cursor = 0;
  std::int64_t earlier_batches = 0;  ///< micro-batches of the epochs before `epoch`
  /// The stop_reason of a hook's or decider's stop that waits for min_epochs or min_steps; 0: none.
  std::uint8_t pending_stop = 0;
  /// In a checkpoint: the stop_reason of such a stop that was due, so that the job ends there again
  /// if no rank outlives the end. A resume by a caller goes on.
  std::uint8_t ended_by = 0;
  monitor_mark monitored;
  /// The names that validations of the fit have logged: what reads one of them looks at the end of
  /// a validation, and what reads another one at the end of an epoch.
  std::set<std::string> of_validation;
  friend bool operator==(const loop_state&, const loop_state&) = default;
};

/// A place in a run to which its ranks can return. Ranks count the points that they pass: the same
/// number is the same place in the run, on every rank and in every generation of a job.
struct resume_point {
  /// What follows the point.
  enum class next : std::uint8_t {
    start,       ///< the fit, or the evaluation: everything is set up, nothing has been done
    boundary,    ///< what is due after a step: validation, end of the epoch, checkpoint
    epoch_done,  ///< the checkpoint of an epoch, if one is due
    go,          ///< the next step, or the end of the run
  };
  std::uint64_t number = 0;  ///< 0: no point, nothing is set up
  next then = next::start;
  bool trained = false;  ///< on_train_start has run
  loop_state loop;
  std::int64_t last_saved = -1;  ///< step of the newest checkpoint of the run, -1: none
  std::uint8_t ending = 0;       ///< the stop_reason of a hook or decider that ends the run
  bool save_due = false;         ///< by the clock: a checkpoint
  bool validation_due = false;   ///< by the clock: a validation
  friend bool operator==(const resume_point&, const resume_point&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, early_stopping_state& x) {
  return f(x.best, x.has_best, x.waited, x.monitor, x.maximize);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, monitor_mark& x) {
  return f(x.monitor, x.step, x.epoch);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, loop_state& x) {
  return f(x.epoch, x.batch, x.steps, x.samples, x.validated, x.last, x.early_stopping, x.cursor,
           x.earlier_batches, x.pending_stop, x.ended_by, x.monitored, x.of_validation);
}

}  // namespace troupe
