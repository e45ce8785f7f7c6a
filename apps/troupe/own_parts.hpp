// What a program adds to the built-in models and data sets (troupe/main.hpp), as settings and
// values. Pure functions.
#pragma once

#include "apps/troupe/catalog.hpp"
#include "troupe/detail/own_parts.hpp"
#include "troupe/value.hpp"

#include <string>
#include <vector>

namespace troupe::program {

/// Throws user_error (bad_configuration) for names that are empty, not allowed, given twice or
/// built in, for settings of such names, and for a part without a function.
void check(const detail::own_parts& all, const std::vector<std::string>& built_in_models,
           const std::vector<std::string>& built_in_data);

/// The settings that a part declares. `of`: `the model classifier`.
schema settings_of(const std::vector<detail::declared_setting>& all, const std::string& of);

/// The same values as fields of a struct take them.
value_map fields_of(const own_values& all);

/// `classifier(hidden=64)`, for identities.
std::string identity_text(const std::string& name, const own_values& all);

}  // namespace troupe::program
