// How a job ended: what trainer, session and the simulator return; and how long its hooks took.
// Plain values.
#pragma once

#include "troupe/detail/loop_state.hpp"
#include "troupe/failure.hpp"
#include "troupe/value.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// How fast a rank trained, by the monotonic clock of its ports.
struct run_figures {
  double seconds_to_first_step = 0;   ///< since the rank's actor began
  double seconds_training = 0;        ///< training only, after the first two steps
  std::int64_t samples_training = 0;  ///< of all ranks, in those seconds
  double seconds_waiting = 0;         ///< of these, the time that the lane waited in collectives
  /// The share of a step spent waiting for communication; 0 when nothing was measured.
  double waiting_share() const {
    return seconds_training > 0 ? seconds_waiting / seconds_training : 0;
  }
};

/// Why a generation ended without a failure, in a job that went on. `left`: a process wanted to
/// end, and its ranks moved to others. `scaled`: the caller asked for another number of processes.
enum class membership_change : std::uint8_t { none, left, scaled };
/// The enumerator's name.
std::string_view to_string(membership_change what);

/// One generation of a job: who took part, and why it ended.
struct generation_record {
  /// From 1.
  std::uint64_t generation = 0;
  std::int32_t ranks = 0;      ///< processes with shards; threads where ranks are threads
  std::int64_t base_step = 0;  ///< the step that it began with
  /// Null: a planned change ended it, or the job ended with it, finished or stopped.
  std::shared_ptr<const failure> ended_by;
  /// `none` where `ended_by` is set, and for the last one.
  membership_change changed = membership_change::none;
  /// Finished by some rank, and lost with the failure before: done again in this one or a later.
  std::int64_t steps_redone = 0;
  /// Of the recovery that led to this generation, in milliseconds, by the clock of the ports; 0 in
  /// the first one.
  struct times {
    double detect = 0;  ///< from the first report of the failure to the order to close
    double abort = 0;   ///< until every rank that is left has left its hooks
    double form = 0;    ///< until every rank holds its communicator and the state, healing included
    double heal = 0;    ///< of that: the transfer of the state, on the slowest rank
    double first_step = 0;  ///< until the first committed step
  };
  /// See times.
  times milliseconds;
};

/// The outcome of one job. `status`:
/// - finished: the job ran to its limits;
/// - stopped: it ended early at a step boundary, with a checkpoint, and can be resumed;
/// - failed: `failed_with` is the first cause.
struct job_outcome {
  /// How a job ended; job_outcome says what each means.
  enum class ending : std::uint8_t { finished, stopped, failed };
  /// `failed` until the job has ended otherwise.
  ending status = ending::failed;
  /// Why the run ended early; `none`: it did not.
  stop_reason why = stop_reason::none;
  /// Where the run ended: epoch, steps and samples done.
  loop_state loop;
  metrics last;  ///< last reduced values; after a failure those that rank 0 knew, if it answered
  std::uint64_t generation = 0;  ///< the last one
  std::int32_t shards = 0;       ///< of the job; 0: it was refused
  std::int32_t restarts = 0;     ///< how often a new generation replaced a failed one
  /// All of them, in order. Empty: the job has no restarts (elastic_options), or was refused.
  std::vector<generation_record> generations;
  /// Rank 0's state at the end of a fit, also of one that failed after it: its last checkpoint was
  /// not written, for example. Null otherwise.
  snapshot_ptr weights;
  value result;  ///< rank 0's: evaluation results, predictions, a spawned function's value
  /// In the order added. In a job that restarts, what is done again counts once; the set-up hooks
  /// of new ranks add their values again; what rank 0 has added in a step may be lost with it.
  std::vector<value> queue;
  /// The best one by checkpoint_policy::monitor when the last one was written. Empty: there is
  /// none.
  std::string best_checkpoint;
  /// The newest durable one, also of a failed fit: written by this job, or else the one that it was
  /// resumed from. Empty: none, or a job that writes none (no run_folder, fast_dev_run, disabled).
  std::string last_checkpoint;
  /// Ranks and observers that did not end within the teardown deadline, and may still run:
  /// `rank 1: on_train_batch_end for 12.0 s`.
  std::vector<std::string> survivors;
  std::vector<failure> late;  ///< failures after the run's end: teardown, checkpoint, observers
  std::shared_ptr<const caught> failed_with;  ///< null unless failed
  run_figures figures;                        ///< rank 0's
  std::vector<double> waiting_shares;         ///< of those ranks that finished, by rank

  /// Finished or stopped.
  bool ok() const { return status != ending::failed; }
  /// Throws the first cause. Does nothing when ok().
  /// - Of a rank that is a thread of this process: the original exception, with its own type.
  /// - Of a rank in another process: what the session's `ports::exceptions` make of its record, the
  ///   same type where that is known there. Nested causes come along.
  /// - Of a failure that is no exception: user_error or internal_error by the record's code, else
  ///   std::runtime_error.
  void rethrow() const;
};
/// The enumerator's name.
std::string_view to_string(job_outcome::ending how);

// How long the hooks of a rank took (trainer_options::profiler).
//
//   const auto outcome = trainer.fit<classifier>(data);  // .profiler = profiler_kind::simple
//   std::cout << to_string(troupe::profile_of(outcome));

/// Times of hooks, by name. A regular value.
class hook_profile {
public:
  /// The calls of one hook.
  struct entry {
    std::int64_t calls = 0;  ///< how many
    /// The time in the rank's lane. Hooks that ran within this one are not part of it: those of an
    /// optimizer_step's closure have entries of their own.
    std::chrono::nanoseconds took{0};
    std::chrono::nanoseconds waited{0};  ///< the part of `took` in collectives of training
    friend bool operator==(const entry&, const entry&) = default;
  };

  /// Counts one call.
  void add(std::string_view hook, std::chrono::nanoseconds took, std::chrono::nanoseconds waited);
  /// By the name of the hook.
  const std::map<std::string, entry, std::less<>>& entries() const { return entries_; }

  /// For job_outcome::queue, and back; an entry that is none of a profile is left out.
  /// @{
  value as_value() const;
  static hook_profile from(const value& what);
  /// @}
  friend bool operator==(const hook_profile&, const hook_profile&) = default;

private:
  std::map<std::string, entry, std::less<>> entries_;
};

/// Rank 0's, from the start of the job until its hook post_dispatch. Empty for a job that was not
/// measured, or that failed.
hook_profile profile_of(const job_outcome& outcome);
/// A table, the hooks that took longest first; each line has its end. Empty for an empty profile.
std::string to_string(const hook_profile& profile);

}  // namespace troupe
