// JSON from a file that may be hostile.
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

/// Parses `text`. Throws std::runtime_error for what is not JSON, a member that is there twice, and
/// what goes beyond a limit, as soon as it does. Thread-safe.
nlohmann::json parse_bounded_json(std::string_view text, const json_limits& limits = {});

/// Throws std::runtime_error: how readers of such files say what is wrong; who knows the file's
/// name adds it.
[[noreturn]] void refuse(const std::string& why);

}  // namespace troupe
