// The catalog of what LibTorch lets the program train.
#pragma once

#include "apps/troupe/catalog.hpp"

#include <memory>

namespace troupe::program {

std::unique_ptr<const catalog> torch_catalog();

}  // namespace troupe::program
