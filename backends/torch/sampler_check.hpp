// Samplers that were made for a number of samples.
#pragma once

#include <cstdint>

#include "troupe/data.hpp"

namespace troupe {

/// Throws user_error (bad_configuration) if weighted_sampler or bucketed_sampler made `order` for
/// another number of samples than the dataset has. Says nothing of other samplers.
void check_sampler(const sampler& order, std::int64_t samples);

}  // namespace troupe
