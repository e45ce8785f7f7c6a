// The entropy port: the only source of random numbers that do not follow from the seed.
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
