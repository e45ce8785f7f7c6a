// The entropy port: the only source of numbers that are not keyed by the seed.
#pragma once

#include <cstdint>

namespace troupe {

/// Thread-safe.
class entropy {
public:
  virtual ~entropy() = default;
  virtual std::uint64_t draw() = 0;
};

}  // namespace troupe
