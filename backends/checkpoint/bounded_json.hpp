// Reads JSON from an untrusted file.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

struct json_limits {
  std::size_t depth = 16;
  std::size_t values = std::size_t{1} << 22;  ///< objects, arrays, keys and scalars together
};

/// Parses `text`. Throws std::runtime_error for invalid JSON, for a repeated member, and as soon as
/// a limit is exceeded. Thread-safe.
nlohmann::json parse_bounded_json(std::string_view text, const json_limits& limits = {});

/// Throws std::runtime_error. Readers of such files report errors with it; the caller that knows
/// the file's name adds it.
[[noreturn]] void refuse(const std::string& why);

}  // namespace troupe
