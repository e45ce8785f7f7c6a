// A length of time as Lightning's users write it.
#pragma once

#include <chrono>
#include <string_view>

namespace troupe::program {

/// Reads `DD:HH:MM:SS`, as `00:12:00:00`: days, hours, minutes, seconds. Throws user_error
/// (bad_configuration) that names `key` for another text, and for no time at all.
std::chrono::seconds read_duration(std::string_view key, std::string_view text);

}  // namespace troupe::program
