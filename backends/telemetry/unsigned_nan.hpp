// Numbers in texts for people and other programs.
#pragma once

#include <cmath>
#include <limits>

namespace troupe {

/// A NaN without a sign, any other number as it is. The sign of a NaN depends on the processor's
/// instructions, and a spreadsheet reads `-nan` as a text.
inline double unsigned_nan(double x) {
  return std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x;
}

}  // namespace troupe
