// A module and data that exercise a learner and its exchange of gradients: dropout, a buffer that
// each batch changes, a double-precision layer (a bucket of its own) that a rank uses in some steps
// only, schedulers, and augmented samples.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "troupe/testing/tensors.hpp"

namespace troupe::testing {

struct branching_how {
  bool adam = false;              ///< AdamW; else SGD with momentum
  bool by_rank = false;           ///< training depends on the rank's number
  bool asks_environment = false;  ///< rank 1 reads the environment
  std::int64_t samples = 50;
};
tensors_options branching_module(const branching_how& how);

/// How often hooks of a module called collectives that returned, by operation, bytes and label as
/// observers see them. Of all ranks.
using called_collectives = std::map<std::string, int>;
/// A module whose hooks call each collective of a strategy and throw std::logic_error when one
/// returns a wrong result. `calls` outlives it; null: its hooks call none.
tensors_options conferring_module(called_collectives* calls);

/// A module that throws std::length_error for a batch of any other size, as a module with layers of
/// a fixed size does, and data with so many samples.
tensors_options full_batch_module(std::int64_t batch_size, std::int64_t samples);

/// A module with manual optimization: two nets that learn against each other. With `strays`, rank 1
/// changes a weight alone in step 3.
tensors_options adversarial_module(bool strays);

}  // namespace troupe::testing
