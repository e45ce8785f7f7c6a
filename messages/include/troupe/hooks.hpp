// One hook of any type: what runs are made of (troupe/detail/hook_types.hpp has the types).
#pragma once

#include "troupe/detail/hook_types.hpp"
#include "troupe/detail/loop_state.hpp"
#include "troupe/detail/position.hpp"
#include "troupe/snapshot.hpp"
#include "troupe/value.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe {

/// One hook, of any type: the std::variant of all of them, with shorter names for its queries. A
/// regular value.
struct hook : hook_types {
  using hook_types::hook_types;

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

  friend bool operator==(const hook& a, const hook& b) {
    return static_cast<const hook_types&>(a) == static_cast<const hook_types&>(b);
  }
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
  bool plateau_schedulers = false;  ///< some scheduler reads a metric, after validation
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

}  // namespace troupe
