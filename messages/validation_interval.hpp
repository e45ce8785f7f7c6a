// A check of options that needs the length of an epoch. Ranks call it when they have the data. A
// recipe that reads the data before the ranks start calls it there.
#pragma once

#include <cstdint>

namespace troupe {

/// Throws user_error (bad_configuration) if a validation after `every` micro-batches of an epoch
/// never comes, because the epoch has only `batches`, after limits. 0 batches: there is no epoch.
void check_validation_interval(std::int64_t every, std::int64_t batches);

}  // namespace troupe
