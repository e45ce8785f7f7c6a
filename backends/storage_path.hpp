// The path that an error of a storage operation names.
#pragma once

#include "troupe/checkpoint.hpp"

#include <string>
#include <variant>

namespace troupe {

/// The file or folder of `op`; of a rename the new path.
inline const std::string& storage_path(const storage_op& op) {
  return std::visit(
      [](const auto& x) -> const std::string& {
        if constexpr (requires { x.path; })
          return x.path;
        else
          return x.to;
      },
      op);
}

}  // namespace troupe
