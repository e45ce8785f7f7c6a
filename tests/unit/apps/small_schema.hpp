// Settings of a program with two models and one data set.
#pragma once

#include "apps/troupe/schema.hpp"

#include <string>

namespace troupe::testing {

inline const program::schema& table() {
  static const auto all = program::make_schema({{"cnn", "mlp"}, {"fashion_mnist"}});
  return all;
}

inline bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace troupe::testing
