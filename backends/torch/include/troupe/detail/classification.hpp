// What measures of labels count, and how. Without LibTorch.
#pragma once

#include <cstdint>
#include <optional>

namespace troupe::measures {

/// How the numbers of several classes become one.
enum class average : std::uint8_t {
  macro,     ///< the mean over classes that occur in targets or predictions
  micro,     ///< of all samples, whatever their class
  weighted,  ///< the mean over classes, weighted by their samples
  none,      ///< one number per class, (classes)
};

/// - Binary (one class): predictions are scores of any shape, with the same number of targets, 0
///   or 1; or such labels.
/// - Several classes: predictions are scores (N, classes, ...) or labels (N, ...); targets are
///   labels (N, ...), 0 to classes - 1.
struct classification {
  std::int64_t classes = 1;
  average how = average::macro;
  double threshold = 0.5;                    ///< binary: a probability above it is a 1
  std::int64_t top_k = 1;                    ///< accuracy: right if among the k highest scores
  std::optional<std::int64_t> ignore_index;  ///< samples with this target do not count
};

}  // namespace troupe::measures
