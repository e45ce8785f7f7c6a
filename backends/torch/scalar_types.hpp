// The element types that values, blobs and collectives share, with their name in each of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "troupe/communicator.hpp"

namespace troupe {

/// One element type. `code` is its number in encoded values; its meaning never changes.
struct scalar_type {
  c10::ScalarType torch;
  std::string_view name;  ///< safetensors'
  std::uint8_t code;
  std::optional<dtype> collective;  ///< none: collectives do not carry it
};

/// Null if values do not carry the type (quantised types, indices of sparse layouts, bits).
const scalar_type* find_scalar_type(c10::ScalarType torch);
const scalar_type* find_scalar_type(std::string_view name);
const scalar_type* find_scalar_type_by_code(std::uint8_t code);

/// The size of a dense tensor in bytes. None if an extent is negative or the size overflows.
std::optional<std::size_t> dense_bytes(const scalar_type& type,
                                       std::span<const std::int64_t> shape);
/// A dense CPU tensor with a copy of `bytes`, which may be untrusted. Throws std::invalid_argument
/// if they do not fit the shape, or if the type is BOOL and a byte is neither 0 nor 1.
at::Tensor tensor_from(const scalar_type& type, std::span<const std::int64_t> shape,
                       std::span<const std::byte> bytes);

}  // namespace troupe
