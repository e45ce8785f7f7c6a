// Cuts a batch into parts that follow each other in time: what module::tbptt_split_batch does.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/value.hpp"

namespace troupe {

/// Parts of `steps` steps in time, the last one maybe shorter; the tensors are views. Cut are the
/// tensors of `whole` along dimension 1, and in each list or tuple of it the elements along their
/// first dimension. Anything else is in each part as it is. Throws user_error if nothing can be
/// cut, or if the lengths differ.
std::vector<value> split_in_time(const value& whole, std::int64_t steps);

}  // namespace troupe
