// States of a module that is trained: what a digest says of one, where two differ, and those of the
// serial reference executor, with the NaNs that faults put into gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/testing/payload.hpp"
#include "troupe/data.hpp"
#include "troupe/recipe.hpp"

namespace troupe {

class step_output;

namespace testing {

/// What the ranks of one job train, and the reference's shards.
struct tensor_job {
  module_factory make_module;
  data_ptr data;  ///< prepared and set up, of as many samples as the job trains
  trainer_options options;
};

using blobs = std::vector<tensor_blob>;

/// NaNs are all alike here: which pattern of bits an operation makes of two of them is not said.
std::uint64_t digest_of(blobs state);
std::optional<difference> first_difference(blobs is, blobs should);

/// With a loss that is NaN, the rest as it was.
step_output spoilt(const step_output& from);

struct tensor_states {
  std::vector<blobs> models;  ///< behind each step; nothing at 0
  std::vector<blobs> optimizers;
  std::vector<std::uint64_t> digests;
};
/// Throws user_error (bad_configuration) when the module's optimizers are beyond the executor.
tensor_states reference_states(const tensor_job& what, const poisons& applied);

}  // namespace testing
}  // namespace troupe
