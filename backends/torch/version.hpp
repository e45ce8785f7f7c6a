// Which LibTorch this is. Thread-safe.
#pragma once

#include <string>

namespace troupe {

/// The version that was compiled against, as `2.13.0`.
std::string torch_version();

}  // namespace troupe
