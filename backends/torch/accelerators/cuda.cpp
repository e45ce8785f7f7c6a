#include <ATen/Context.h>
#include <fmt/format.h>

#include "backends/torch/accelerators/adapters.hpp"

namespace troupe {

namespace {

/// Needs no header of CUDA: LibTorch's device guard, hooks and allocator do everything.
class cuda final : public accelerator {
public:
  std::string_view name() const override { return to_string(accelerator_kind::cuda); }
  c10::DeviceType type() const override { return c10::kCUDA; }
  std::string unusable() const override {
    if (!cuda_built())
      return "this program's LibTorch was built without CUDA; build it again with TROUPE_TORCH set "
             "to the folder of a LibTorch with CUDA";
    if (count() == 0)
      return "LibTorch finds no CUDA device on this host; check nvidia-smi and "
             "CUDA_VISIBLE_DEVICES";
    return {};
  }
  int preference() const override { return 10; }
  at::Tensor staged(const at::Tensor& t) const override {
    return t.defined() && t.layout() == c10::kStrided ? t.pin_memory() : t;
  }
};

}  // namespace

bool cuda_built() { return at::globalContext().getAcceleratorHooksInterface(c10::kCUDA).isBuilt(); }

accelerator_ptr cuda_accelerator() { return std::make_shared<cuda>(); }

accelerator_table default_accelerators() {
  return {{std::string{to_string(accelerator_kind::cpu)}, cpu_accelerator},
          {std::string{to_string(accelerator_kind::cuda)}, cuda_accelerator},
          {std::string{to_string(accelerator_kind::lazy)}, lazy_accelerator}};
}

}  // namespace troupe
