// A user's models, data sets and predictions.
#pragma once

#include "troupe/data.hpp"
#include "troupe/detail/own_parts.hpp"
#include "troupe/value.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::program {

/// What the part makes of these settings. Throws user_error (bad_configuration) that names the part
/// if that is nothing, and for a data set, whatever its function throws (job_failed).
/// @{
std::shared_ptr<module> make_own(const detail::own_part<module>& one, const value_map& settings);
data_ptr make_own(const detail::own_part<data_module>& one, const value_map& settings);
/// @}

/// One line of JSON per prediction: per sample where the tensors of a batch have one row each, and
/// else per batch. Lists are one batch after the other.
std::vector<std::string> own_predictions(const value& result);

}  // namespace troupe::program
