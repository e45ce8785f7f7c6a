#include "backends/torch/version.hpp"

#include <torch/headeronly/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13,
              "Troupe needs LibTorch 2.13 or newer; see README.md");

namespace troupe {

std::string torch_version() { return TORCH_VERSION; }

}  // namespace troupe
