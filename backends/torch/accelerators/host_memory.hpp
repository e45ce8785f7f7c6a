// Memory of the host: where communicators, files and plain code read and write numbers.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

/// Where tensors are that the host reads and writes.
c10::Device host_device();
/// The host may read and write the tensor's memory, and no device does at the same time.
bool in_host_memory(const at::Tensor& t);
/// The tensor itself, or a copy of it in host memory. Returns when the numbers are there.
at::Tensor to_host(const at::Tensor& t);
/// A dense copy in host memory that nothing else uses. Returns when the numbers are there.
at::Tensor copy_to_host(const at::Tensor& t);

}  // namespace troupe
