// The element types that values, blobs and collectives share, with the name each of them gives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "troupe/communicator.hpp"

namespace troupe {

/// One element type. `code` is its number in encoded values and never changes its meaning.
struct scalar_type {
  c10::ScalarType torch;
  std::string_view name;  ///< safetensors'
  std::uint8_t code;
  std::optional<dtype> collective;  ///< none: collectives do not carry it
};

/// Null when the type is none that values carry (quantised, sparse layouts' indices, bits).
const scalar_type* find_scalar_type(c10::ScalarType torch);
const scalar_type* find_scalar_type(std::string_view name);
const scalar_type* find_scalar_type_by_code(std::uint8_t code);

/// The size of a dense tensor. None when an extent is negative or sizes or strides would overflow.
std::optional<std::size_t> dense_bytes(const scalar_type& type,
                                       std::span<const std::int64_t> shape);
/// A dense CPU tensor with a copy of `bytes`, which may come from anywhere. Throws
/// std::invalid_argument when they do not fit the shape or are no truth values where BOOL says so.
at::Tensor tensor_from(const scalar_type& type, std::span<const std::int64_t> shape,
                       std::span<const std::byte> bytes);

}  // namespace troupe
