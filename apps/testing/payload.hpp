// What a simulated run trains when it is not the field payload: the seam for ghosts, for LibTorch
// and for learners of one's own.
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

/// A gradient that a fault has made NaN: one rank's, of one batch of the step behind `step` others.
struct poison {
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::int64_t batch = 0;  ///< within its epoch
  friend auto operator<=>(const poison&, const poison&) = default;
};
/// What struck on the way to a state.
using poisons = std::set<poison>;

/// What a run gives its learners.
struct payload_ground {
  /// On the run's simulated disk; reads only.
  std::shared_ptr<const checkpoint_io> checkpoints;
  /// To be called at every hook; may throw: faults strike there.
  std::function<void(const learner_context& who, const hook& what)> at_hook;
  /// Whether that has anything to do now, for who handles many hooks at one moment.
  std::function<bool()> faults_due;
  /// To be asked once for each gradient, before it is computed: true, it is to be NaN.
  std::function<bool(const learner_context& who, const position& at)> poisons;
  /// To be called behind every step of every rank: steps done, and the digest of the state.
  std::function<void(const learner_context& who, std::int64_t steps, std::uint64_t digest)> stepped;
};

/// The first place where two states differ.
struct difference {
  std::string parameter;
  std::int64_t element = -1;
};

/// One job's share of a payload: its recipe, and what its state must be.
class payload_job {
public:
  virtual ~payload_job() = default;
  virtual recipe_ptr recipe(payload_ground ground) const = 0;
  /// Virtual time that the reductions of a step take at most over this network when nothing
  /// disturbs them; oracles of time allow for it.
  virtual std::chrono::nanoseconds exchange_of_step(const network_cost& network) const {
    (void)network;
    return std::chrono::nanoseconds{0};
  }
  /// What `stepped` must say where `struck` was met and nothing else; nothing: no oracle looks at
  /// states.
  virtual std::optional<std::uint64_t> digest_behind(std::int64_t steps, const poisons& applied) {
    (void)steps, (void)applied;
    return std::nullopt;
  }
  /// A snapshot against a run that met `struck` and no other fault.
  virtual std::optional<difference> compare(const snapshot& is, std::int64_t steps,
                                            const poisons& applied) {
    (void)is, (void)steps, (void)applied;
    return std::nullopt;
  }
};

/// Shared by the runs of an exploration. Not thread-safe.
class payload {
public:
  virtual ~payload() = default;
  virtual std::string_view name() const = 0;
  /// Its learners wait inside of hooks: each lane gets a thread, one at a time runs.
  virtual bool waits() const { return false; }
  /// Whether explore() may train a job with fewer samples than it was given. False: the data or the
  /// learner are made for the number that the job names.
  virtual bool varies_samples() const { return true; }
  /// May be remembered: a job comes again with every seed. What it throws is a violation of the run
  /// (`exception_oracle`); a user_error (bad_usage, bad_configuration) ends the test.
  virtual std::shared_ptr<payload_job> of(const job_spec& what) = 0;
};

}  // namespace troupe::testing
