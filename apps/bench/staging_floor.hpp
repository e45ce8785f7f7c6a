// The work that a sum of two ranks through slots cannot avoid, as plain loops: two threads copy in,
// synchronise, reduce, copy out. No fingerprints, no deadlines, no abort, no sleep. This is the
// reference for memory that a communicator did not allocate.
#pragma once

#include <cstddef>
#include <memory>

namespace troupe::program {

/// Measures the least time of such a sum: of two float32 arrays of `bytes`, through shared memory
/// with as many slots as `shm` has. Not thread-safe.
class staging_floor {
public:
  explicit staging_floor(std::size_t bytes);
  ~staging_floor();
  staging_floor(const staging_floor&) = delete;
  staging_floor& operator=(const staging_floor&) = delete;

  /// Sums both arrays into both, `calls` times; seconds per call. Throws internal_error if the
  /// first sum is wrong.
  double time_of(int calls);

private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace troupe::program
