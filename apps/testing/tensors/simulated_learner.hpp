// The production learner of a simulated rank, with faults injected before each hook and checks
// after it.
#pragma once

#include "apps/testing/tensors/tensor_states.hpp"

namespace troupe::testing {

/// Data is loaded inline: loader threads would run beside the thread that holds the baton.
recipe_ptr simulated_recipe(tensor_job what, payload_ground ground);

}  // namespace troupe::testing
