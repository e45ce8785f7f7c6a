// Helpers of the storage conformance suite. Each case is written once against the port. A new
// adapter is one line in storage_suite.cpp.
#pragma once

#include "troupe/checkpoint.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::testing {

/// A fresh, empty storage. A case calls `settle` after it has submitted operations and before it
/// waits for their answers: a simulated adapter carries the operations out in `settle`. `held` must
/// outlive the storage.
struct storage_world {
  std::shared_ptr<void> held;
  std::shared_ptr<storage> files;
  std::function<void()> settle = [] {};

  /// Submits one operation and waits for its answer.
  storage_result call(storage_op op) const;
  /// The same, but fails the case on an error.
  storage_result must(storage_op op) const;
  /// The content of a file.
  std::string text(const std::string& path) const;
};

struct storage_adapter {
  std::string name;
  std::function<storage_world()> make;
};
const std::vector<storage_adapter>& storage_adapters();

/// A write of the given chunks.
storage_ops::write writing(std::string path, const std::vector<std::string>& chunks);

}  // namespace troupe::testing
