// The lane port: where a rank's user code and tensors run, so that the rank's actor never blocks.
#pragma once

#include "messages/lane.hpp"
#include "troupe/learner.hpp"

#include <chrono>
#include <optional>
#include <string_view>

namespace troupe {

/// What a lane does at this moment. Any thread may read it while the lane runs.
struct lane_status {
  bool busy = false;
  /// Name of the hook in flight, a static text; empty when idle. `make`, `bind`: the lane has a
  /// run, and its learner is being made or bound.
  std::string_view hook;
  std::int64_t step = undefined;
  std::chrono::nanoseconds since{0};  ///< how long it has been in flight
};

/// Called by the lane, possibly on its own thread. Nothing is called once the handle is destroyed.
struct lane_sink {
  /// Must not block and not throw.
  std::function<void(ran&&)> answered;
  /// At entry of every hook, in the order handled: the trace. On a thread it may wait for the
  /// trace's reader, which counts as time of the hook; a call that waits may outlive the handle.
  /// What it throws fails the hook. May be empty.
  std::function<void(const hook&)> entered;
};

/// One rank's lane. Submissions from one thread (the rank actor); `set_attention`, `status` from
/// any.
class lane {
public:
  /// Destruction never waits for user code; a stuck lane keeps what it still uses.
  virtual ~lane() = default;

  /// Sets the collectives of a new generation, before its first run; in order with `submit`.
  virtual void bind(std::shared_ptr<communicator> world, generation_id generation) = 0;
  /// Begins a run. One run is in flight at a time: submitting a second one before the first is
  /// answered throws internal_error, and the first continues.
  virtual void submit(hook_run run) = 0;
  /// The lane reads it between hooks: unless it is `none`, the lane ends the run and answers
  /// `attention`.
  virtual void set_attention(attention word) noexcept = 0;
  virtual lane_status status() const = 0;
  /// Asks the lane to destroy its learner and end. `closed` is called once when it has ended, on
  /// any thread, with the exception if the learner's destructor or `result` threw. It is not called
  /// while user code is stuck.
  virtual void close(std::function<void(value result, caught error)> closed) = 0;
};

/// Opens lanes: threads in production, inline lanes in simulations.
class lane_backend {
public:
  virtual ~lane_backend() = default;
  /// Creates the learner inside the lane. What `make` throws is the answer to the first run.
  virtual std::unique_ptr<lane> open(const learner_context& context, recipe_ptr recipe,
                                     lane_sink sink) = 0;
};

}  // namespace troupe
