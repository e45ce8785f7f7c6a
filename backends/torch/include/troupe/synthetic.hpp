// Synthetic data for tests, benchmarks and first steps: of any shape, without files.
#pragma once

#include "troupe/data.hpp"

namespace troupe {

/// What the data looks like.
struct synthetic_options {
  std::int64_t samples = 2048;    ///< of training
  std::int64_t evaluation = 512;  ///< of validation(), test() and predict(), which are the same
  std::vector<std::int64_t> shape{1, 28, 28};  ///< of one sample
  /// At least 1.
  std::int64_t classes = 10;
  double spread =
      1.0;  ///< of a blob around its centre; centres lie about sqrt(2) apart per feature
  /// Other seeds give other data.
  std::uint64_t seed = 0;
};

/// One bell-shaped blob per class: features float (N, shape...), labels int64 (N), sample i of
/// class i mod classes. A pure function of the options, the same on every machine. Held in memory.
/// Throws user_error for impossible options.
data_ptr synthetic(synthetic_options options = {});

}  // namespace troupe
