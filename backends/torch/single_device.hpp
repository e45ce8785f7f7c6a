// One rank on one device: no communicator, gradients as LibTorch leaves them.
#pragma once

#include "troupe/strategy.hpp"

namespace troupe {

class single_device : public strategy {
public:
  using strategy::strategy;
  std::string_view name() const override { return "single_device"; }
};

}  // namespace troupe
