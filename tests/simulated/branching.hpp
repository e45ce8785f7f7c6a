// A module and data that ask much of a learner and its exchange of gradients: dropout, a buffer
// that each batch moves, a layer in doubles (a bucket of its own) that a rank uses in some steps
// only, schedulers, and samples that are augmented.
#pragma once

#include <cstdint>

#include "troupe/testing/tensors.hpp"

namespace troupe::testing {

struct branching_how {
  bool adam = false;              ///< AdamW, else SGD with momentum
  bool by_rank = false;           ///< what a rank learns depends on its number
  bool asks_environment = false;  ///< rank 1 does
  std::int64_t samples = 50;
};
tensors_options branching_module(const branching_how& how);

/// A module that throws std::length_error for a batch of any other size, as one whose layers are
/// made for that size does, and data of so many samples.
tensors_options full_batch_module(std::int64_t batch_size, std::int64_t samples);

}  // namespace troupe::testing
