// The production learner of a simulated rank, with faults before and a look behind each hook.
#pragma once

#include "apps/testing/tensors/tensor_states.hpp"

namespace troupe::testing {

/// Data is loaded inline: threads of a loader would run beside the one that holds the baton.
recipe_ptr simulated_recipe(tensor_job what, payload_ground ground);

}  // namespace troupe::testing
