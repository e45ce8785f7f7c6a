#include "backends/torch/accelerators/host_memory.hpp"

namespace troupe {

c10::Device host_device() { return c10::Device{c10::kCPU}; }

bool in_host_memory(const at::Tensor& t) { return t.is_cpu(); }

at::Tensor to_host(const at::Tensor& t) { return t.to(host_device()); }

at::Tensor copy_to_host(const at::Tensor& t) {
  return t.detach()
      .to(t.options().device(host_device()), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

}  // namespace troupe
