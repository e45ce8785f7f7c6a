#pragma once

#include <chrono>

namespace troupe {

/// A span of time in seconds, for figures and texts.
constexpr double seconds(std::chrono::nanoseconds span) {
  return std::chrono::duration<double>(span).count();
}

}  // namespace troupe
