// The parts that the table of settings is made of.
#pragma once

#include "apps/troupe/schema.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::program {

/// Two counts that are multiplied still fit into 64 bits, and so does one times the most ranks.
inline constexpr double count_limit = (std::int64_t{1} << 31) - 1;

/// Adds a setting, which the caller may complete.
setting& add(schema& all, std::string key, kind k, setting_value fallback, std::string flag,
             std::string help, std::vector<std::string> choices = {});

/// The tables `[model]`, `[data]` and `[optimizer]`, with the settings of a user's own.
void add_learning(schema& s, const schema_names& names);

}  // namespace troupe::program
