#include "backends/torch/scalar_types.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace troupe {

namespace {

using c10::ScalarType;

constexpr std::array scalar_table{
    scalar_type{ScalarType::Bool, "BOOL", 0, dtype::boolean},
    scalar_type{ScalarType::Byte, "U8", 1, dtype::u8},
    scalar_type{ScalarType::Char, "I8", 2, dtype::i8},
    scalar_type{ScalarType::Short, "I16", 3, dtype::i16},
    scalar_type{ScalarType::Int, "I32", 4, dtype::i32},
    scalar_type{ScalarType::Long, "I64", 5, dtype::i64},
    scalar_type{ScalarType::Half, "F16", 6, dtype::f16},
    scalar_type{ScalarType::BFloat16, "BF16", 7, dtype::bf16},
    scalar_type{ScalarType::Float, "F32", 8, dtype::f32},
    scalar_type{ScalarType::Double, "F64", 9, dtype::f64},
    scalar_type{ScalarType::ComplexFloat, "C64", 10, dtype::c64},
    scalar_type{ScalarType::ComplexDouble, "C128", 11, dtype::c128},
    scalar_type{ScalarType::UInt16, "U16", 12, std::nullopt},
    scalar_type{ScalarType::UInt32, "U32", 13, std::nullopt},
    scalar_type{ScalarType::UInt64, "U64", 14, std::nullopt},
    scalar_type{ScalarType::Float8_e5m2, "F8_E5M2", 15, std::nullopt},
    scalar_type{ScalarType::Float8_e4m3fn, "F8_E4M3", 16, std::nullopt},
};

template <class Field>
const scalar_type* find(Field scalar_type::*field, Field wanted) {
  const auto at = std::find_if(scalar_table.begin(), scalar_table.end(),
                               [&](const scalar_type& entry) { return entry.*field == wanted; });
  return at == scalar_table.end() ? nullptr : &*at;
}

}  // namespace

const scalar_type* find_scalar_type(ScalarType torch) { return find(&scalar_type::torch, torch); }

const scalar_type* find_scalar_type(std::string_view name) {
  return find(&scalar_type::name, name);
}

const scalar_type* find_scalar_type_by_code(std::uint8_t code) {
  return find(&scalar_type::code, code);
}

std::optional<std::size_t> dense_bytes(const scalar_type& type,
                                       std::span<const std::int64_t> shape) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(type.torch));
  std::int64_t strides = element;  // bounded also if an extent of 0 makes the size 0
  std::int64_t bytes = element;
  for (const auto extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(strides, std::max<std::int64_t>(extent, 1), &strides))
      return std::nullopt;
    bytes *= extent;
  }
  return static_cast<std::size_t>(bytes);
}

at::Tensor tensor_from(const scalar_type& type, std::span<const std::int64_t> shape,
                       std::span<const std::byte> bytes) {
  const auto needed = dense_bytes(type, shape);
  if (!needed) throw std::invalid_argument("impossible shape");
  if (*needed != bytes.size())
    throw std::invalid_argument(
        fmt::format("the shape needs {} bytes, there are {}", *needed, bytes.size()));
  const auto is_truth = [](std::byte x) { return x <= std::byte{1}; };
  if (type.torch == ScalarType::Bool && !std::all_of(bytes.begin(), bytes.end(), is_truth))
    throw std::invalid_argument("a truth value is neither 0 nor 1");
  auto tensor = at::empty(at::IntArrayRef{shape.data(), shape.size()}, type.torch);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace troupe
