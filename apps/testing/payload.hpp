// What a simulated run trains when it is not the field payload: the seam for ghosts, for LibTorch
// and for learners of one's own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "backends/checkpoint_io.hpp"
#include "backends/learner.hpp"
#include "backends/simulated/fabric.hpp"

namespace troupe::testing {

struct field_job;

/// What a run gives its learners.
struct payload_ground {
  /// On the run's simulated disk; reads only.
  std::shared_ptr<const checkpoint_io> checkpoints;
  /// To be called at every hook; may throw: faults strike there.
  std::function<void(const learner_context& who, const hook& what)> at_hook;
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
  /// What `stepped` must say; nothing: no oracle looks at states.
  virtual std::optional<std::uint64_t> digest_behind(std::int64_t steps) {
    (void)steps;
    return std::nullopt;
  }
  /// A snapshot against a run without faults.
  virtual std::optional<difference> compare(const snapshot& is, std::int64_t steps) {
    (void)is, (void)steps;
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
  /// May be remembered: a job comes again with every seed.
  virtual std::shared_ptr<payload_job> of(const field_job& what) = 0;
};

}  // namespace troupe::testing
