// What happens in a job: the hooks that its ranks run, and the observer port, for progress
// displays, loggers and a program's own. An observer only watches; it cannot change or delay a run.
#pragma once

#include "troupe/detail/hook_types.hpp"
#include "troupe/detail/loop_state.hpp"
#include "troupe/detail/position.hpp"
#include "troupe/failure.hpp"
#include "troupe/value.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe {

// One hook of any type: what runs are made of (troupe/detail/hook_types.hpp has the types).

/// One hook, of any type: the std::variant of all of them, with shorter names for its queries. A
/// regular value.
struct hook : hook_types {
  /// The first type of hook_types, with its defaults.
  hook();
  /// The hook as one of any type.
  template <hook_type H>
  hook(H one) : hook(hook_index<H>, &one) {}

  /// As of the variant. Defined in a source: a copy of so many types takes 5 s to compile.
  /// @{
  hook(const hook& other);
  hook(hook&& other) noexcept;
  hook& operator=(const hook& other);
  hook& operator=(hook&& other) noexcept;
  ~hook();
  /// @}

  /// Whether it is one of `H...`.
  template <class... H>
  bool is() const {
    return (std::holds_alternative<H>(*this) || ...);
  }
  /// The hook as its own type, or null.
  template <class H>
  const H* get_if() const {
    return std::get_if<H>(static_cast<const hook_types*>(this));
  }
  /// Calls `what` with the hook as its own type.
  template <class F>
  decltype(auto) visit(F&& what) const {
    return std::visit(std::forward<F>(what), static_cast<const hook_types&>(*this));
  }

  friend bool operator==(const hook& a, const hook& b);

private:
  /// Moves from `one`, a pointer to the type at `index` of hook_types.
  hook(std::size_t index, void* one);
};

/// The hook's name as users write it.
std::string_view name(const hook& h);
/// Where it happens.
const position& where(const hook& h);
/// `on_train_batch_start(train epoch 0 step 3 batch 3)`, and what else the hook carries.
std::ostream& operator<<(std::ostream& out, const hook& h);
/// All names, in the order of the variant. For `--fault` and its error messages.
const std::vector<std::string_view>& hook_names();

// What a learner brings back from a hook, besides having handled it.

/// How a run of hooks ended.
enum class run_verdict : std::uint8_t {
  proceed,     ///< all hooks were handled
  skip_epoch,  ///< all ranks agreed to skip the rest of this epoch; the rest of the run was not
               ///< handled
  attention,   ///< the rank's actor interrupted the lane: the rest of the run was not handled
  failed,      ///< a hook threw; see `failed_with`
  waits,       ///< only of a single hook, in a lane that cannot wait: the hook is to be called
               ///< again. The same as throwing not_yet (troupe/learner.hpp), at a fraction of the
               ///< cost
};

/// The length of one loader, in batches, before any limit; known once the data is set up.
struct loader_length {
  /// Whose loader it is: train, validate (for the sanity check, too), test or predict.
  troupe::stage stage = stage::train;
  /// Counts the loaders of the stage from 0.
  std::int32_t dataloader = 0;
  std::int64_t batches = 0;  ///< micro-batches of an epoch or pass, the same on every rank
  std::int64_t samples = 0;  ///< of all ranks
  /// Of all ranks in a full micro-batch; 0: unknown. A resumed epoch has the micro-batches that are
  /// done, and ceil((samples - cursor) / batch_samples) more; if it is unknown, `batches`.
  std::int64_t batch_samples = 0;
  friend bool operator==(const loader_length&, const loader_length&) = default;
};

/// The learner's optimizers; known after setup_optimizers.
struct optimizer_facts {
  /// How many the module has; each of them makes a step per batch.
  std::int32_t optimizers = 1;
  bool step_schedulers = false;     ///< some scheduler steps after every optimizer step
  bool epoch_schedulers = false;    ///< some scheduler steps after every epoch
  bool plateau_schedulers = false;  ///< some scheduler reads a metric
  /// The strategy's engine counts micro-batches itself: every micro-batch is an optimizer_step,
  /// with its own clipping. Zeroing, schedulers and the count of steps follow
  /// accumulate_grad_batches.
  bool accumulates_itself = false;
  /// Truncated back-propagation through time: each batch has a tbptt_split_batch, and an
  /// optimizer_step for each of its parts. Together they count as one step.
  bool splits_batches = false;
  /// The module runs backward and its optimizers itself (module::automatic_optimization): a batch
  /// has a training_step and a training_step_end, and counts as one step.
  bool manual = false;
  friend bool operator==(const optimizer_facts&, const optimizer_facts&) = default;
};

/// The result of one hook, or of a whole run. Comments name the hook that fills a field.
struct hook_outcome {
  /// For a single hook: proceed, skip_epoch or waits.
  run_verdict verdict = run_verdict::proceed;
  bool stop = false;  ///< a hook asked for an end of the run, agreed by all ranks
  /// on_train_batch_end: rank 0's clock says that a checkpoint, a validation is due at the next
  /// step boundary. The same on all ranks.
  /// @{
  bool save_due = false;
  bool validation_due = false;
  /// @}
  std::vector<loader_length> loaders;         ///< process_dataloader
  std::optional<optimizer_facts> optimizers;  ///< setup_optimizers
  std::optional<loop_state> restored;         ///< load_checkpoint
  metrics logged;                             ///< reduced values that became known
  std::vector<std::string> prog_bar;          ///< those of `logged` that progress displays show
  snapshot_ptr snapshot;                      ///< save_checkpoint
  std::vector<value> queued;                  ///< add_to_queue, first in first out
  /// Consumed by finished steps of this run, all ranks. Not 0: the weights of a step are updated,
  /// also when a later hook of the run failed.
  std::int64_t samples = 0;
  std::int32_t splits = 0;             ///< tbptt_split_batch: how many, the same on all ranks
  std::string state_digest;            ///< rewind, restore_state: of the whole state
  std::chrono::nanoseconds waited{0};  ///< the lane, in collectives of training

  /// Adds the result of a later hook: later values win, lists grow, a stop stays.
  void merge(hook_outcome&& later);
};

// What observers receive. Observers cannot delay a rank and cannot change a result.

/// The events in the life of a job, about in the order in which they come. The list is complete:
/// `event` in events.jsonl is one of these names. In brackets: the details of the event.
enum class lifecycle_kind : std::uint8_t {
  generation_forming,    ///< the supervisor starts the ranks of a generation [stage; after another
                         ///< one cause: failure, left or scaled; restarts_left]
  rank_started,          ///< a rank holds its communicator
  generation_active,     ///< every rank is prepared and may train [ranks, shards]
  checkpoint_written,    ///< `step` is durable [path, behind; skipped above 0]
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
  /// Stage, epoch, steps done, and the last batch of the step in progress. In an evaluation: the
  /// last batch that is done, counted over all its loaders; `undefined`: none.
  position at;
  std::int64_t batches = undefined;  ///< of the epoch or the evaluation, after limits
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

/// Makes a job's observer when the job starts; never null. What it throws is in job_outcome::late,
/// and the job goes on without this observer.
using observer_factory = std::function<std::unique_ptr<observer>()>;

}  // namespace troupe
