// Memory of the host: where communicators, files and plain code read and write numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace troupe {

/// Where tensors are that the host reads and writes.
c10::Device host_device();
/// The host may read and write the tensor's memory, and no device does at the same time.
bool in_host_memory(const at::Tensor& t);
/// The tensor's numbers are in memory, of the host or of a device. Not so where a device collects
/// operators first: such a tensor has neither a pointer nor views that share its memory.
bool in_memory(const at::Tensor& t);
/// The tensor itself, or a copy of it in host memory. Returns when the numbers are there.
at::Tensor to_host(const at::Tensor& t);
/// The same for several. A device that collects operators runs them once for all of these.
std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& all);
/// A dense copy in host memory that nothing else uses. Returns when the numbers are there.
at::Tensor copy_to_host(const at::Tensor& t);

}  // namespace troupe
