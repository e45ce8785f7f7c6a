// The observer port: progress displays, loggers, a program's own. An observer only watches; it
// cannot change or delay a run.
#pragma once

#include "troupe/detail/loop_state.hpp"
#include "troupe/failure.hpp"
#include "troupe/hooks.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe {

// What observers receive. Observers cannot delay a rank and cannot change a result.

/// The events in the life of a job, about in the order in which they come. The list is complete:
/// `event` in events.jsonl is one of these names. In brackets: the details of the event.
enum class lifecycle_kind : std::uint8_t {
  generation_forming,    ///< the supervisor starts the ranks of a generation; after another one
                         ///< [cause: failure, left or scaled; restarts_left]
  rank_started,          ///< a rank holds its communicator
  generation_active,     ///< every rank is prepared and may train [ranks, shards]
  checkpoint_written,    ///< a checkpoint of `step` is durable [path]
  checkpoint_failed,     ///< a checkpoint of `step` could not be written [what]
  stop_requested,        ///< the caller or a signal asks for an early end [why]
  stop_agreed,           ///< the ranks have agreed on the step to stop at [steps]
  rank_finished,         ///< a rank has done all its steps [steps]
  rank_failed,           ///< a failure; `rank` is undefined when it is no rank's [what]
  generation_closing,    ///< every rank is asked to leave its hooks [why, if no failure]
  generation_closed,     ///< every rank has left its hooks
  trouble,               ///< something failed beside the ranks: a checkpoint, an observer [what]
  teardown,              ///< the ranks are taken down [orderly]
  survivor,              ///< a rank did not end in time and is left behind [what]
  job_ended,             ///< the ranks are gone, and the checkpointer is done [status]
  observations_dropped,  ///< an observer's queue was full; a line of events.jsonl only [count]
  events_lost,           ///< lines that the disk had no room for; of events.jsonl only [count]
};
/// The enumerator's name.
std::string_view to_string(lifecycle_kind kind);

/// What a rank's lane asks of the others.
enum class collective_kind : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  barrier,
  decide,
  work_together
};
/// The enumerator's name.
std::string_view to_string(collective_kind kind);

namespace seen {

/// A rank handled a hook. Sent by rank actors after the run that held it. Only to observers that
/// ask for hooks.
struct hook {
  /// Whose hook it is.
  std::int32_t rank = 0;
  /// With its position and arguments.
  troupe::hook what;
};
/// A rank's lane called a collective and waited for its end, or it failed. Sent by lanes, of all
/// code that uses the generation's communicator. Only to observers that ask for hooks.
struct collective {
  /// Whose lane it is.
  std::int32_t rank = 0;
  std::int32_t ranks = 1;  ///< that take part
  /// The generation of the communicator.
  std::uint64_t generation = 0;
  /// Counts the collectives of all ranks in this generation, from 1. Reports of several ranks with
  /// one number are the same collective. 0: a collective of a subgroup.
  std::uint64_t number = 0;
  /// What was called.
  collective_kind kind = collective_kind::barrier;
  std::string label;                  ///< of a barrier or of work in shared memory
  std::uint64_t bytes = 0;            ///< of this rank's input
  std::chrono::nanoseconds began{0};  ///< submitted, by the monotonic clock of the rank's ports
  std::chrono::nanoseconds took{0};   ///< until the lane knew the end
  /// Aborted, out of time or a mismatch.
  bool failed = false;
};
/// Reduced values became known (rank 0 sends them): `logged` at optimizer step `at.step`. After a
/// failure, those of the newest steps come again, the same as before.
struct metrics {
  /// The position of the hook that reduced them.
  position at;
  /// The values that became known, by name.
  troupe::metrics logged;
  /// The names of those that progress displays show (log_options::prog_bar).
  std::vector<std::string> prog_bar = {};
};
/// Rank 0 finished a step or an evaluation batch: for progress displays. The first to be dropped
/// when a queue is full.
struct progress {
  /// The position of the hook that ended the step or batch.
  position at;
  std::int64_t batches = undefined;  ///< of the loader, after limits
  std::int64_t samples = 0;          ///< consumed so far, all ranks
};
/// An event in the life of the job. Details are texts, as events.jsonl has them. Never dropped.
struct lifecycle {
  /// What happened.
  lifecycle_kind event = lifecycle_kind::generation_forming;
  /// The rank that it concerns; -1: the job as a whole.
  std::int32_t rank = -1;
  /// 0: outside of generations.
  std::uint64_t generation = 0;
  /// Optimizer steps done, where the event has a step.
  std::int64_t step = undefined;
  /// See lifecycle_kind.
  std::map<std::string, std::string> details;
  /// The failure itself, of rank_failed, trouble and checkpoint_failed; null otherwise.
  std::shared_ptr<const failure> cause = nullptr;
};

}  // namespace seen

/// One of the events above.
using observation =
    std::variant<seen::hook, seen::metrics, seen::progress, seen::lifecycle, seen::collective>;
/// True for what only observers that ask for hooks receive.
inline bool is_detail(const observation& what) {
  return std::holds_alternative<seen::hook>(what) || std::holds_alternative<seen::collective>(what);
}
/// Shared by all observers of a job.
using observation_ptr = std::shared_ptr<const observation>;

/// How many observations a queue had no room for. Metrics and lifecycle events are never dropped.
struct dropped_observations {
  /// Dropped observations of the type seen::progress.
  std::uint64_t progress = 0;
  std::uint64_t hooks = 0;  ///< and collectives

  /// The sum.
  std::uint64_t all() const { return progress + hooks; }
  /// Adds the numbers, or one observation by its kind.
  /// @{
  void add(const dropped_observations& more) {
    progress += more.progress;
    hooks += more.hooks;
  }
  void add(const observation& one) {
    if (is_detail(one))
      ++hooks;
    else
      ++progress;
  }
  /// @}
  friend bool operator==(const dropped_observations&, const dropped_observations&) = default;
};

/// Called by one thread at a time, not always the same one, one observation at a time. Observations
/// of one sender arrive in order. They wait in a bounded queue: a slow observer loses progress
/// first, then hooks. What it throws is reported once as a lifecycle event (`trouble`) and ends the
/// observer, never the job.
class observer {
public:
  virtual ~observer() = default;
  /// Whether it wants `seen::hook` and `seen::collective`: that costs one message for each of them
  /// and each rank.
  virtual bool wants_hooks() const { return false; }
  /// One observation. While it runs others wait in the bounded queue.
  virtual void on(const observation& what) = 0;
  /// The job has ended and no observation follows: flush. The queue had no room for `dropped`
  /// observations.
  virtual void finish(std::uint64_t dropped) { (void)dropped; }
};

/// Makes a job's observer when the job starts.
using observer_factory = std::function<std::unique_ptr<observer>()>;

}  // namespace troupe
