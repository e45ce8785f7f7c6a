// Ranks as plain threads with the inproc communicator, driven by fit machines: learners without
// actors.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/fit_machine.hpp"
#include "backends/inproc/inproc.hpp"
#include "troupe/learner.hpp"

namespace troupe::testing {

/// Runs `body` once per rank, each on a thread of its own, and waits for all. An exception of a
/// rank aborts the group, as in the runtime. Returns the exceptions by rank (null: no exception).
std::vector<std::exception_ptr> on_ranks(
    std::int32_t world,
    const std::function<void(std::int32_t rank, const std::shared_ptr<communicator>&)>& body);

/// How a job ended on one rank.
struct rank_end {
  loop_state loop;
  stop_reason why = stop_reason::none;
  snapshot_ptr snapshot;  ///< the last one, rank 0 only
  std::vector<value> queued;
  value result;
  std::vector<hook> hooks;  ///< as handled
  std::vector<fit_actions::metrics_known> rows;
  std::exception_ptr error;
  failure record;  ///< of `error`, as described by the lane
};

struct test_job {
  recipe_ptr recipe;
  trainer_options options;
  stage purpose = stage::train;
  std::string resume;
  snapshot_ptr initial;
  /// Makes a rank's communicator of the one that its thread has; empty: that one.
  std::function<std::shared_ptr<communicator>(const std::shared_ptr<communicator>&)> around = {};
};

/// Runs all hooks of the job on `options.ranks` ranks, teardown included.
std::vector<rank_end> run_job(const test_job& job);
/// The same for a job that must not fail: rethrows the first error that is not a consequence of
/// another one.
std::vector<rank_end> run_good_job(const test_job& job);

/// The type and text of an exception, as in `generation_closed: ...`; "nothing" if there is none.
std::string text_of(const std::exception_ptr& error);

}  // namespace troupe::testing
