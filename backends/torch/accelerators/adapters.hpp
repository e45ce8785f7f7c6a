// The accelerators that Troupe has.
#pragma once

#include "troupe/accelerator.hpp"

namespace troupe {

accelerator_ptr cpu_accelerator();
accelerator_ptr cuda_accelerator();
accelerator_ptr lazy_accelerator();
/// Whether LibTorch was built with CUDA; a device need not be there.
bool cuda_built();

/// Throws user_error (bad_configuration) if `precision` uses autocast and LibTorch has none for the
/// accelerator's devices.
void check_autocast(const accelerator& kind, std::string_view precision);

}  // namespace troupe
