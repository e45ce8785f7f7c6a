// Encodes a tensor inside a value: the code of its element type, its shape, its bytes.
#include <cstring>
#include <stdexcept>

#include "backends/torch/scalar_types.hpp"
#include "troupe/detail/tensor.hpp"

namespace troupe {

namespace {

constexpr std::size_t most_dimensions = 64;

void append_raw(std::vector<std::byte>& to, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  to.insert(to.end(), bytes, bytes + size);
}

template <class T>
T take_number(std::span<const std::byte>& from) {
  T x;
  std::memcpy(&x, take_bytes(from, sizeof x).data(), sizeof x);
  return x;
}

class bytes_of_torch : public tensor_bytes {
public:
  void append(const tensor_ptr& tensor, std::vector<std::byte>& to) const override {
    const auto blob = blob_of({}, tensor->tensor);
    append_raw(to, &find_scalar_type(blob.dtype)->code, 1);
    const std::uint64_t dimensions = blob.shape.size();
    append_raw(to, &dimensions, sizeof dimensions);
    append_raw(to, blob.shape.data(), blob.shape.size() * sizeof(std::int64_t));
    append_raw(to, blob.bytes->data(), blob.bytes->size());
  }

  tensor_ptr take(std::span<const std::byte>& from) const override {
    const auto* type = find_scalar_type_by_code(take_number<std::uint8_t>(from));
    if (!type) throw std::invalid_argument("these bytes are no tensor: unknown dtype");
    const auto dimensions = take_number<std::uint64_t>(from);
    if (dimensions > most_dimensions)
      throw std::invalid_argument("these bytes are no tensor: too many dimensions");
    std::vector<std::int64_t> shape(dimensions);
    for (auto& extent : shape) extent = take_number<std::int64_t>(from);
    const auto bytes = dense_bytes(*type, shape);
    if (!bytes) throw std::invalid_argument("these bytes are no tensor: impossible shape");
    return std::make_shared<const tensor_box>(
        tensor_box{tensor_from(*type, shape, take_bytes(from, *bytes))});
  }
};

const bytes_of_torch bytes_of_tensors{};

}  // namespace

const tensor_bytes& torch_tensor_bytes() { return bytes_of_tensors; }

std::vector<std::byte> encode(const value& v) { return bytes_of_value(v, &torch_tensor_bytes()); }

value decode(std::span<const std::byte> bytes) {
  return value_of_bytes(bytes, &torch_tensor_bytes());
}

}  // namespace troupe
