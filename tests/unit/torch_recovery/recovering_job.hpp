// A job of thread ranks that loses ranks and goes on: what the rank machines do, without actors.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troupe/learner.hpp"
#include "troupe/observer.hpp"

namespace troupe::testing {

/// One failure, or planned change, in the first generation.
struct injected {
  std::int32_t rank = 1;
  /// The entry of this hook in this step, or
  std::string hook;
  std::int64_t step = 0;
  /// the submission of this rank's n-th collective, from 0; -1: none.
  std::int64_t collective = -1;
  /// The rank loses its state. False: it rewinds as the others do.
  bool lost = true;
  /// The next generation is aborted too, at this collective of `rank`; -1: it is not.
  std::int64_t collective_of_next = -1;
  /// Nothing fails: all ranks pause after this step, and `rank` moves if `lost`; -1: they do not.
  std::int64_t pause_at = -1;
};

struct recovered_job {
  std::string digest;                    ///< of the state at the end, the same on all ranks
  std::map<std::int64_t, metrics> rows;  ///< last known values by step
  metrics last;
  std::int64_t steps = 0;
  std::int32_t generations = 1;
  std::int32_t survivors_with_state = 0;  ///< that could rewind, in the first failure
  std::int64_t base_step = -1;            ///< of the second generation
  std::vector<std::int64_t> collectives;  ///< that each rank submitted in generation 1
  std::vector<std::string> refusals;      ///< of ranks that could not rewind
};

/// Runs a fit to its end. Checks on the way that all ranks that hold the same point have the same
/// digest, and that all ranks agree after a restore. Throws if no rank holds a point.
/// `now` is the clock of a rank; null: the machine's.
using rank_clock = std::function<std::chrono::nanoseconds(std::int32_t rank)>;
recovered_job run_recovering(const recipe_ptr& recipe, trainer_options options,
                             const injected* failure = nullptr, const rank_clock& now = {});

/// Checks that both jobs ended in the same bits, with the same metrics, after as many steps.
void check_same(const recovered_job& now, const recovered_job& undisturbed);

}  // namespace troupe::testing
