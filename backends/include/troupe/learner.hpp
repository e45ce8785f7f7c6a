// The learner port: what a rank trains, without LibTorch. A lane passes it hooks, in order.
#pragma once

#include "troupe/checkpoint.hpp"
#include "troupe/communicator.hpp"
#include "troupe/detail/value_bytes.hpp"
#include "troupe/observer.hpp"
#include "troupe/options.hpp"
#include "troupe/value.hpp"

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

/// Handles the hooks of an optimizer_step's closure, once each time that it is called.
using closure = std::function<void()>;

/// Thrown by a learner whose lane cannot wait (a simulated one) when a hook would have to wait. The
/// lane calls the same hook again later; the learner remembers how far it came, and a closure runs
/// once. Learners of lanes that can wait never throw it. A hook that the lane calls directly, not
/// within a closure, may return run_verdict::waits instead.
class not_yet : public std::exception {
public:
  const char* what() const noexcept override { return "not yet: the hook waits for its peers"; }
};

/// What a learner gets when its rank starts.
struct learner_context {
  /// Its number in the job, from 0.
  std::int32_t rank = 0;
  /// Ranks of the job (shards, in a job with fewer processes).
  std::int32_t world = 1;
  /// The same on all ranks.
  job_id job;
  /// The job's, as learner_recipe::configure left them, with `accelerator` and `devices` settled
  /// (learner_recipe::settle_devices).
  trainer_options options;
  /// `fit`, `validate`, `test`, `predict` or `call`: what the run is for.
  troupe::stage purpose = stage::train;
  /// Weights to start with, before the first broadcast; null: the module's own.
  snapshot_ptr initial;
  /// The monotonic clock of the session's ports; null: the machine's. For measurements, never for
  /// decisions that change a result.
  std::function<std::chrono::nanoseconds()> now;
  /// The lane's attention; long loops of a learner may read it.
  const std::atomic<attention>* attention_word = nullptr;
  /// How checkpoints are read, unless the recipe has a format of its own; null: the learner's own.
  std::shared_ptr<const checkpoint_io> checkpoints = nullptr;
  /// The job writes the snapshots of this rank, which is rank 0, as checkpoints.
  bool saves = false;
};

/// One rank's replica: created, called and destroyed by one thread, in the rank's lane. What a
/// member throws is the rank's failure. Collectives may wait in any member; the wait ends with the
/// operation, or throws generation_closed, collective_timeout or collective_mismatch.
class learner {
public:
  virtual ~learner() = default;
  /// Before the first run of each generation: the collectives to use from now on. The old one is
  /// quiescent.
  virtual void bind(std::shared_ptr<communicator> world, generation_id generation) = 0;
  /// Handles one hook. `inner` is set for optimizer_step only.
  virtual hook_outcome on(const hook& h, const closure& inner) = 0;
  /// Called before `on` when no observer follows single hooks. May handle hooks from
  /// hooks[handled] on that have no result and need not wait, and adds their number to `handled`;
  /// `on` handles the next one. For learners that leave most hooks empty, as simulated ones do: an
  /// outcome costs more than such a hook. The lane reads its attention before and after the call.
  virtual void pass(std::span<const hook> hooks, std::uint32_t& handled) {
    (void)hooks, (void)handled;
  }
  /// In jobs that can restart (`elastic_options`), after a run of hooks that ends at a point to
  /// which the rank may return: keep what `hooks::rewind` needs to return here. What it keeps of
  /// the point before is not needed any more.
  virtual void keep_point() {}
  /// After an orderly teardown, on every rank: the rank's result. Rank 0's is job_outcome::result.
  virtual value result() { return {}; }
};

/// Makes the learners of a job. Shared by all ranks: const and thread-safe.
class learner_recipe {
public:
  virtual ~learner_recipe() = default;
  /// Called in the rank's lane. `context` and the recipe outlive the learner.
  virtual std::unique_ptr<learner> make(const learner_context& context) const = 0;
  /// What the recipe makes, as text; empty: unknown. Where ranks are processes each of them makes
  /// the recipe anew, and one with another identity than the job's is refused.
  virtual std::string identity() const { return {}; }
  /// How tensors in results and queued values are sent to another process; null: they cannot be.
  virtual const tensor_bytes* tensors() const { return nullptr; }
  /// How lanes take the text of the exceptions that learners throw.
  virtual exception_text text_of_exceptions() const { return what_of; }
  /// The format of this job's checkpoints, for the learners that read them and for the checkpointer
  /// that writes them. Null: the one of the session's ports (`ports::checkpoints`).
  virtual std::shared_ptr<const checkpoint_io> checkpoints() const { return nullptr; }
  /// Changes the job's options as parts of the recipe ask (callback::configure). Called once for
  /// each job before anything else. Throws user_error if the options contradict them.
  virtual void configure(trainer_options& options) const { (void)options; }
  /// Replaces `accelerator` and `devices` of the options by what they mean on this host, for
  /// `ranks` ranks on it (0: unknown, a launcher places them). Called for each job before ranks
  /// start and before anything is written. Throws user_error (device) with the reason and the fix.
  /// The default is for learners that compute on the host's processors.
  virtual void settle_devices(trainer_options& options, std::int32_t ranks) const;
  /// Checks the options of a fit, which are configured. Reads no device, no data and no checkpoint.
  /// Called before ranks start. Throws the user_error that a rank would throw. The default accepts
  /// everything.
  virtual void check_options(const trainer_options& options) const { (void)options; }
  /// Checks that a fit with `options` can start, and that it can resume `from`, which was read from
  /// `path`. Throws the user_error that a rank would throw, with what differs and the value to
  /// give. `troupe fit` calls it before ranks start and before anything is written; a session does
  /// not, and leaves it to the ranks. May read data, and take as long. The default accepts
  /// everything.
  virtual void check_fit(const trainer_options& options, const snapshot* from,
                         const std::string& path) const {
    (void)options, (void)from, (void)path;
  }
  /// Loads what a rank needs before its first step: libraries, kernels. It reads no data: a rank of
  /// the host may not have prepared them yet. Called in a process that waits for ranks, on a thread
  /// of its own, before any of them. May take long. Exceptions are dropped: the first rank throws
  /// them again.
  virtual void warm_up(const trainer_options& options) const { (void)options; }
};
/// Shared by a job and its ranks.
using recipe_ptr = std::shared_ptr<const learner_recipe>;

}  // namespace troupe
