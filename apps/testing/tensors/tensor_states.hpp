// States of a trained module: digests, the first difference of two states, and the states of the
// serial reference executor with the NaNs that faults put into gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/testing/payload.hpp"
#include "troupe/data.hpp"
#include "troupe/strategy.hpp"

namespace troupe {

class step_output;

namespace testing {

/// What the ranks of a job and the reference's shards train.
struct tensor_job {
  module_factory make_module;
  data_ptr data;  ///< prepared and set up, with as many samples as the job trains
  trainer_options options;
};

using blobs = std::vector<tensor_blob>;

/// All NaNs count as equal, because an operation on two NaNs does not define their bits.
std::uint64_t digest_of(blobs state);
std::optional<difference> first_difference(blobs is, blobs should);

/// The same outcome with a NaN loss.
step_output spoilt(const step_output& from);

struct tensor_states {
  std::vector<blobs> models;  ///< after each step; index 0 is empty
  std::vector<blobs> optimizers;
  std::vector<std::uint64_t> digests;
};
/// Throws user_error (bad_configuration) when the executor does not support the module's
/// optimizers.
tensor_states reference_states(const tensor_job& what, const poisons& applied);

}  // namespace testing
}  // namespace troupe
