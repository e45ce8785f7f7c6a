// The seam for what a simulated run trains instead of integers: the null payload, LibTorch, or a
// learner of the test.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "backends/simulated/fabric.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/learner.hpp"

namespace troupe::testing {

struct job_spec;

/// A gradient that a fault turned into NaN: of one rank and batch, after `step` steps.
struct poison {
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::int64_t batch = 0;  ///< number within its epoch
  friend auto operator<=>(const poison&, const poison&) = default;
};
/// The poisoned gradients that a state depends on.
using poisons = std::set<poison>;

/// What a run gives its learners.
struct payload_ground {
  /// On the run's simulated disk; read only.
  std::shared_ptr<const checkpoint_io> checkpoints;
  /// Call at every hook; may throw an injected exception.
  std::function<void(const learner_context& who, const hook& what)> at_hook;
  /// False if `at_hook` would do nothing now. A learner that passes many hooks at one moment asks
  /// once, and then need not call `at_hook` for them.
  std::function<bool()> faults_due;
  /// Ask once for each gradient before computing it; true: make it NaN.
  std::function<bool(const learner_context& who, const position& at)> poisons;
  /// Call after every step of every rank, with the number of steps done and the digest of the
  /// state.
  std::function<void(const learner_context& who, std::int64_t steps, std::uint64_t digest)> stepped;
};

/// The first position where two states differ.
struct difference {
  std::string parameter;
  std::int64_t element = -1;
};

/// The part of a payload that belongs to one job: its recipe and its expected states.
class payload_job {
public:
  virtual ~payload_job() = default;
  virtual recipe_ptr recipe(payload_ground ground) const = 0;
  /// Virtual time that a step's reductions take at most over this network without disturbance.
  /// Oracles of time allow for it.
  virtual std::chrono::nanoseconds exchange_of_step(const network_cost& network) const {
    (void)network;
    return std::chrono::nanoseconds{0};
  }
  /// Expected digest after `steps` steps with the poisoned gradients `applied` and no others.
  /// Empty: oracles do not compare states.
  virtual std::optional<std::uint64_t> digest_after(std::int64_t steps, const poisons& applied) {
    (void)steps, (void)applied;
    return std::nullopt;
  }
  /// Compares a snapshot with a run that had `applied` and no other fault.
  virtual std::optional<difference> compare(const snapshot& is, std::int64_t steps,
                                            const poisons& applied) {
    (void)is, (void)steps, (void)applied;
    return std::nullopt;
  }
};

/// Shared by all runs of an exploration. Not thread-safe.
class payload {
public:
  virtual ~payload() = default;
  virtual std::string_view name() const = 0;
  /// Whether its learners wait inside hooks. Then each lane gets a thread, and one of them runs at
  /// a time.
  virtual bool waits() const { return false; }
  /// Whether explore() may train a job with fewer samples than given. False: the data or the
  /// learner need the number that the job names.
  virtual bool varies_samples() const { return true; }
  /// Whether explore() may train a job with another accumulation than given. False: the learner may
  /// need the job's.
  virtual bool varies_accumulation() const { return true; }
  /// May cache its result: jobs repeat with every seed. An exception is a violation of the run
  /// (`exception_oracle`); a user_error (bad_usage, bad_configuration) ends the test.
  virtual std::shared_ptr<payload_job> of(const job_spec& what) = 0;
};

}  // namespace troupe::testing
