// Tensors in a `value`: boxing, unboxing and encoding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "troupe/communicator.hpp"
#include "troupe/detail/value_bytes.hpp"
#include "troupe/value.hpp"

namespace troupe {

/// See troupe/value.hpp. The tensor must not be changed.
struct tensor_box {
  at::Tensor tensor;
};

/// A value that shares `tensor`'s memory.
value boxed(at::Tensor tensor);
/// The tensor in `v`. Throws std::invalid_argument that names the actual kind of `v`.
const at::Tensor& unboxed(const value& v);

/// `v` with every tensor replaced by f(tensor). Tuples, lists and maps keep their kind; user types
/// and everything else are unchanged. batch_to_device keeps a batch's type by this.
value map_tensors(const value& v, const std::function<at::Tensor(const at::Tensor&)>& f);
/// All tensors of `v`, in order (maps by key).
std::vector<at::Tensor> tensors_of(const value& v);
/// A copy whose tensors are cloned (detached, on the CPU), for add_to_queue and results.
value deep_copy(const value& v);
/// A tensor as a copy without a graph, on its device. Other values as they are.
value detached_copy(const value& v);

/// A value as bytes and back, for broadcast(object). Kinds, dtypes and shapes are kept; user types
/// are refused with std::invalid_argument (troupe/detail/value_bytes.hpp).
std::vector<std::byte> encode(const value& v);
value decode(std::span<const std::byte> bytes);
/// The encoding of tensors in these bytes.
const tensor_bytes& torch_tensor_bytes();

/// The communicator's name of a tensor's dtype. Throws std::invalid_argument for types without one.
dtype dtype_of(const at::Tensor& tensor);
/// Describes a dense CPU tensor's memory. Throws std::invalid_argument unless it is contiguous.
buffer buffer_of(at::Tensor& tensor);

/// A copy of a tensor's bytes under a name, with safetensors' dtype name. Any device, any strides.
tensor_blob blob_of(std::string name, const at::Tensor& tensor);
/// A tensor with a copy of the blob's bytes.
at::Tensor tensor_of(const tensor_blob& blob);

}  // namespace troupe
