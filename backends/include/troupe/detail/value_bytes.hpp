// The byte form of a value: what broadcast(object) sends and what crosses a process border.
#pragma once

#include "troupe/value.hpp"

#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace troupe {

/// How tensors become bytes; implemented where LibTorch is (troupe/detail/tensor.hpp). Const and
/// thread-safe.
class tensor_bytes {
public:
  virtual ~tensor_bytes() = default;
  /// Appends the tensor. Throws std::invalid_argument when it cannot travel.
  virtual void append(const tensor_ptr& tensor, std::vector<std::byte>& to) const = 0;
  /// Takes one tensor off the front of `from`. Throws std::invalid_argument for bytes that are
  /// none; hostile ones cost no memory beyond their own size.
  virtual tensor_ptr take(std::span<const std::byte>& from) const = 0;
};

/// One byte names the kind; counts and extents are 64-bit little endian; map keys ascend, so that
/// equal values have equal bytes. User types are refused with std::invalid_argument, and so are
/// tensors when `tensors` is null.
std::vector<std::byte> bytes_of_value(const value& v, const tensor_bytes* tensors);
/// The value again. Depth (64), counts and sizes are bounded: hostile bytes cost an error
/// (std::invalid_argument), never memory.
value value_of_bytes(std::span<const std::byte> bytes, const tensor_bytes* tensors);

/// The first `size` bytes of `from`, which is moved behind them. Throws std::invalid_argument when
/// there are fewer.
std::span<const std::byte> take_bytes(std::span<const std::byte>& from, std::size_t size);

}  // namespace troupe
