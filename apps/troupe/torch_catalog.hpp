// The catalog of models and data sets that use LibTorch.
#pragma once

#include "apps/troupe/catalog.hpp"

#include <memory>

namespace troupe::program {

std::unique_ptr<const catalog> torch_catalog();

}  // namespace troupe::program
