// A table of a module's layers and of the numbers that they learn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troupe {

/// One line of the table.
struct layer_summary {
  std::string name;  ///< dotted, as in its parameters' names
  std::string type;  ///< `Linear`, of torch::nn::LinearImpl
  /// Numbers in its parameters, those of its sub-modules included.
  std::int64_t parameters = 0;
  bool training = true;  ///< not in evaluation mode
  friend bool operator==(const layer_summary&, const layer_summary&) = default;
};

/// The table and its sums.
struct module_summary {
  std::vector<layer_summary> layers;  ///< in the order of registration
  std::int64_t trainable = 0;         ///< numbers in parameters that need gradients
  std::int64_t fixed = 0;             ///< in the others
  std::int64_t bytes = 0;             ///< of both
};

/// Layers down to `depth` levels below `of`; -1: all, 0: none. A parameter with two names counts
/// once in each layer that has it, and once in the sums.
module_summary summarize(const torch::nn::Module& of, int depth = 1);

/// As Lightning's ModelSummary prints it: a line per layer, then the sums.
std::string to_string(const module_summary& all);

}  // namespace troupe
