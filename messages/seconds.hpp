#pragma once

#include <chrono>
#include <string>

namespace troupe {

/// A span of time in seconds, for figures and texts.
constexpr double seconds(std::chrono::nanoseconds span) {
  return std::chrono::duration<double>(span).count();
}

/// `1.5 s`: to a tenth, for texts. Not negative.
inline std::string seconds_text(std::chrono::nanoseconds span) {
  const auto tenths = (span + std::chrono::milliseconds{50}) / std::chrono::milliseconds{100};
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace troupe
