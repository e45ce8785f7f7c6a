// The learner port: what a rank trains, seen without LibTorch. A lane hands it hooks, in order.
#pragma once

#include "troupe/checkpoint.hpp"
#include "troupe/communicator.hpp"
#include "troupe/detail/value_bytes.hpp"
#include "troupe/hook_outcome.hpp"
#include "troupe/hooks.hpp"
#include "troupe/options.hpp"
#include "troupe/snapshot.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace troupe {

/// Why a lane should stop between two hooks. Set from any thread, read by the lane.
enum class attention : std::uint8_t { none, generation_closed };

/// Handles the hooks of an optimizer_step's closure, once each time it is called.
using closure = std::function<void()>;

/// Thrown by a learner whose lane cannot wait (backends/simulated/inline_lane.hpp) when a hook
/// would have to: the same hook is to be called again later, the learner remembers how far it came
/// (a closure runs once). Learners of lanes that can wait never throw it. What a lane calls
/// directly, no closure's hook, may answer run_verdict::waits instead.
class not_yet : public std::exception {
public:
  const char* what() const noexcept override { return "not yet: the hook waits for its peers"; }
};

/// What a learner is given when its rank starts.
struct learner_context {
  std::int32_t rank = 0;
  std::int32_t world = 1;
  job_id job;
  trainer_options options;
  /// `fit`, `validate`, `test`, `predict` or `call`: what the run is for.
  troupe::stage purpose = stage::train;
  /// Weights to start with, before the first broadcast; null: the module's own.
  snapshot_ptr initial;
  /// The monotonic clock of the world; null: the machine's. For measurements, never for decisions
  /// that change a result.
  std::function<std::chrono::nanoseconds()> now;
  /// The lane's attention word; long loops of a learner's own may look at it.
  const std::atomic<attention>* attention_word = nullptr;
  /// How checkpoints are read, unless the recipe has a format of its own; null: the learner's own.
  std::shared_ptr<const checkpoint_io> checkpoints = nullptr;
};

/// One rank's replica. Lives in its lane: created, called and destroyed there, by one thread.
/// Exceptions from any member are the rank's failure. Collectives inside may wait; their wait ends
/// by completion or throws.
class learner {
public:
  virtual ~learner() = default;
  /// Before the first run of each generation: the collectives to use from now on. The old one is
  /// quiescent.
  virtual void bind(std::shared_ptr<communicator> world, generation_id generation) = 0;
  /// Handles one hook. `inner` is set for optimizer_step only.
  virtual hook_outcome on(const hook& h, const closure& inner) = 0;
  /// Called before `on` where nobody watches single hooks. May handle hooks from hooks[handled] on,
  /// as long as they bring nothing and need not wait, and counts each that it has handled; `on`
  /// handles the next one. For learners that leave most hooks empty, as simulated ones do: an
  /// outcome takes longer than such a hook. The attention word is looked at before and behind.
  virtual void pass(std::span<const hook> hooks, std::uint32_t& handled) {
    (void)hooks, (void)handled;
  }
  /// After an orderly teardown, on every rank: what this rank brings home (rank 0's reaches the
  /// caller).
  virtual value result() { return {}; }
};

/// Makes the learners of a job. Shared by all ranks: const, thread-safe.
class learner_recipe {
public:
  virtual ~learner_recipe() = default;
  /// `context` and the recipe stay for as long as the learner does.
  virtual std::unique_ptr<learner> make(const learner_context& context) const = 0;
  /// What the recipe makes, as text; empty: unknown. Where ranks are processes each of them makes
  /// the recipe anew, and one with another identity than the job's is refused.
  virtual std::string identity() const { return {}; }
  /// How tensors in results and queued values cross a process border; null: they can not.
  virtual const tensor_bytes* tensors() const { return nullptr; }
  /// How lanes read the text of what its learners throw.
  virtual exception_text text_of_exceptions() const { return what_of; }
  /// The format of this job's checkpoints, for the learners that read them and for the checkpointer
  /// that writes them. Null: the one of the session's ports (`ports::checkpoints`).
  virtual std::shared_ptr<const checkpoint_io> checkpoints() const { return nullptr; }
  /// Whether a fit with `options` can start: with `from`, which was read from `path`, whether it
  /// may resume that checkpoint. Throws the user_error that its ranks would throw, naming what
  /// differs and the value to give. For callers that want to know it before ranks start or anything
  /// is written; may read data, and takes as long. The default accepts everything.
  virtual void check_fit(const trainer_options& options, const snapshot* from,
                         const std::string& path) const {
    (void)options, (void)from, (void)path;
  }
};
using recipe_ptr = std::shared_ptr<const learner_recipe>;

}  // namespace troupe
