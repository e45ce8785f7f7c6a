#include "backends/torch/accelerators/host_memory.hpp"

#include "backends/torch/accelerators/lazy_operators.hpp"

namespace troupe {

c10::Device host_device() { return c10::Device{c10::kCPU}; }

bool in_host_memory(const at::Tensor& t) { return t.is_cpu(); }

bool in_memory(const at::Tensor& t) { return !t.is_lazy(); }

at::Tensor to_host(const at::Tensor& t) { return t.to(host_device()); }

std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& all) {
  const lazy_reads once{all};
  std::vector<at::Tensor> there;
  for (const auto& one : all) there.push_back(to_host(one));
  return there;
}

at::Tensor copy_to_host(const at::Tensor& t) {
  return t.detach()
      .to(t.options().device(host_device()), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

}  // namespace troupe
