// A module and data that exercise a learner and its exchange of gradients: dropout, a buffer that
// each batch changes, a double-precision layer (a bucket of its own) that a rank uses in some steps
// only, schedulers, and augmented samples.
#pragma once

#include <cstdint>

#include "troupe/testing/tensors.hpp"

namespace troupe::testing {

struct branching_how {
  bool adam = false;              ///< AdamW; else SGD with momentum
  bool by_rank = false;           ///< training depends on the rank's number
  bool asks_environment = false;  ///< rank 1 reads the environment
  std::int64_t samples = 50;
};
tensors_options branching_module(const branching_how& how);

/// A module that throws std::length_error for a batch of any other size, as a module with layers of
/// a fixed size does, and data with so many samples.
tensors_options full_batch_module(std::int64_t batch_size, std::int64_t samples);

}  // namespace troupe::testing
