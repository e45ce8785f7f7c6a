// Statistics of repeated measurements.
#pragma once

#include <vector>

namespace troupe::program {

/// Seconds. `spread` is relative: the distance between the quartiles, over the median.
struct timing {
  double median = 0;
  double spread = 0;
  double best = 0;
};
/// Zeros when there is nothing to sum up.
timing summary(std::vector<double> seconds);

/// Seconds on the monotonic clock.
double bench_now();

}  // namespace troupe::program
