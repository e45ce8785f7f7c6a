#include "troupe/detail/tensor.hpp"

#include <fmt/format.h>

#include <bit>
#include <stdexcept>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/scalar_types.hpp"

namespace troupe {

static_assert(std::endian::native == std::endian::little, "blobs are memory as it lies");

namespace {

std::string_view kind_of(const value& v) {
  static constexpr std::string_view names[] = {"nothing", "a truth value", "an integer", "a number",
                                               "a text",  "no tensor",     "a tuple",    "a list",
                                               "a map",   "a user's type"};
  return names[v.held().index()];
}

const scalar_type& known_type(const at::Tensor& tensor) {
  if (!tensor.defined()) throw std::invalid_argument("the tensor is undefined");
  if (const auto* found = find_scalar_type(tensor.scalar_type()); found) return *found;
  throw std::invalid_argument(fmt::format("tensors of {} have no name outside of LibTorch",
                                          c10::toString(tensor.scalar_type())));
}

at::Tensor dense_on_cpu(const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided)
    throw std::invalid_argument("a sparse tensor has no dense bytes: call to_dense() first");
  return to_host(tensor.detach()).resolve_conj().resolve_neg().contiguous();
}

}  // namespace

value boxed(at::Tensor tensor) {
  return tensor_ptr{std::make_shared<const tensor_box>(tensor_box{std::move(tensor)})};
}

const at::Tensor& unboxed(const value& v) {
  if (const auto* box = v.get_if<tensor_ptr>(); box && *box) return (*box)->tensor;
  throw std::invalid_argument(fmt::format("expected a tensor, got {}", kind_of(v)));
}

value map_tensors(const value& v, const std::function<at::Tensor(const at::Tensor&)>& f) {
  const auto all = [&](auto container) {
    for (auto& item : container.items) item = map_tensors(item, f);
    return value{std::move(container)};
  };
  if (const auto* box = v.get_if<tensor_ptr>(); box && *box) return boxed(f((*box)->tensor));
  if (const auto* tuple = v.get_if<value_tuple>()) return all(*tuple);
  if (const auto* list = v.get_if<value_list>()) return all(*list);
  if (const auto* map = v.get_if<value_map>()) {
    auto copy = *map;
    for (auto& [key, item] : copy.items) item = map_tensors(item, f);
    return copy;
  }
  return v;
}

std::vector<at::Tensor> tensors_of(const value& v) {
  std::vector<at::Tensor> found;
  map_tensors(v, [&](const at::Tensor& tensor) {
    found.push_back(tensor);
    return tensor;
  });
  return found;
}

value deep_copy(const value& v) {
  return map_tensors(v, [](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return tensor.detach().to(tensor.options().device(host_device()), /*non_blocking=*/false,
                              /*copy=*/true);
  });
}

value detached_copy(const value& v) {
  if (!v.is<tensor_ptr>() || !unboxed(v).defined()) return v;
  return boxed(unboxed(v).detach().clone());
}

dtype dtype_of(const at::Tensor& tensor) {
  const auto& type = known_type(tensor);
  if (type.collective) return *type.collective;
  throw std::invalid_argument(fmt::format("collectives do not carry {}", type.name));
}

buffer buffer_of(at::Tensor& tensor) {
  const auto type = dtype_of(tensor);
  if (!in_host_memory(tensor))
    throw std::invalid_argument(
        fmt::format("the tensor is on {}, not in memory of the host", tensor.device().str()));
  if (!tensor.is_contiguous())
    throw std::invalid_argument("the tensor is not contiguous: call contiguous() first");
  return {tensor.mutable_data_ptr(), static_cast<std::size_t>(tensor.numel()), type};
}

tensor_blob blob_of(std::string name, const at::Tensor& tensor) {
  const auto& type = known_type(tensor);
  const auto dense = dense_on_cpu(tensor);
  const auto* data = static_cast<const std::byte*>(dense.const_data_ptr());
  return {std::move(name), std::string{type.name}, dense.sizes().vec(),
          std::make_shared<const std::vector<std::byte>>(data, data + dense.nbytes())};
}

at::Tensor tensor_of(const tensor_blob& blob) {
  const auto* type = find_scalar_type(blob.dtype);
  if (!type)
    throw std::invalid_argument(fmt::format("{}: unknown dtype {}", blob.name, blob.dtype));
  const auto held = blob.bytes ? std::span{*blob.bytes} : std::span<const std::byte>{};
  try {
    return tensor_from(*type, blob.shape, held);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("{}: {}", blob.name, error.what()));
  }
}

}  // namespace troupe
