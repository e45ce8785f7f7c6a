// The accelerators that Troupe has.
#pragma once

#include "troupe/accelerator.hpp"

namespace troupe {

accelerator_ptr cpu_accelerator();
accelerator_ptr cuda_accelerator();
accelerator_ptr lazy_accelerator();
/// Whether LibTorch was built with CUDA; a device need not be there.
bool cuda_built();

}  // namespace troupe
