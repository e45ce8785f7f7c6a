// The compute port: where a rank's user code and tensors run, beside an actor that never waits.
#pragma once

#include "messages/lane.hpp"
#include "troupe/learner.hpp"

#include <chrono>
#include <optional>
#include <string_view>

namespace troupe {

/// What a lane is doing right now; may be read from any thread while it runs.
struct lane_status {
  bool busy = false;
  std::string_view hook;  ///< the name of the hook in flight, which stays; empty when idle
  std::int64_t step = undefined;
  std::chrono::nanoseconds since{0};  ///< how long it has been in flight
};

/// Called by the lane, possibly on its own thread: never waits, never throws.
struct lane_sink {
  std::function<void(ran&&)> answered;
  /// At entry of every hook, in the order handled. For traces and observers; must be cheap. May be
  /// empty.
  std::function<void(const hook&)> entered;
};

/// One rank's lane. Submissions from one thread (the rank actor); `set_attention`, `status` from
/// any.
class lane {
public:
  /// Destruction never waits for user code: what a stuck lane still touches is left to it.
  virtual ~lane() = default;

  /// Collectives of a new generation, before its first run. Takes effect in order with `submit`.
  virtual void bind(std::shared_ptr<communicator> world, generation_id generation) = 0;
  /// Begins a run. One is in flight at a time: a second one before the first is answered is refused
  /// with an internal_error, and the first goes on.
  virtual void submit(hook_run run) = 0;
  /// Looked at between hooks: once set (to other than none) a lane answers `attention` instead of
  /// going on.
  virtual void set_attention(attention word) noexcept = 0;
  virtual lane_status status() const = 0;
  /// Asks the lane to destroy its learner and end; `closed` is called once when it has (with the
  /// learner's last words if its destructor or `result` threw), on any thread. Not called while
  /// user code is stuck.
  virtual void close(std::function<void(value result, caught error)> closed) = 0;
};

/// Opens lanes. Injected by main: threads in production, inline in simulation.
class lane_backend {
public:
  virtual ~lane_backend() = default;
  /// Creates the learner inside the lane; what `make` throws arrives as the answer of the first
  /// run.
  virtual std::unique_ptr<lane> open(const learner_context& context, recipe_ptr recipe,
                                     lane_sink sink) = 0;
};

}  // namespace troupe
