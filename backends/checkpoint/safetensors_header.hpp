// The header of a safetensors file: the position of each tensor. Everything in it is checked before
// it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// One tensor's range [begin, end), counted from the first byte after the header.
struct safetensors_entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const safetensors_entry&, const safetensors_entry&) = default;
};

struct safetensors_header {
  std::vector<safetensors_entry> tensors;       ///< in the order of the header's text
  std::map<std::string, std::string> metadata;  ///< `__metadata__`
  friend bool operator==(const safetensors_header&, const safetensors_header&) = default;
};

/// Limits of a header. Writers keep them too, so that every written file can be read.
namespace safetensors_limits {
inline constexpr std::uint64_t header_bytes = std::uint64_t{100} << 20;  ///< as the Python package
inline constexpr std::size_t entries = std::size_t{1} << 20;
inline constexpr std::size_t dimensions = 64;
}  // namespace safetensors_limits

/// Bytes of one element; 0 for an unknown dtype.
std::size_t safetensors_element_size(std::string_view dtype);

/// The header's length, which the first eight bytes of a file hold. Throws std::runtime_error if it
/// exceeds `file_bytes` or the limit. Thread-safe, as all functions here.
std::uint64_t safetensors_header_length(std::span<const std::byte, 8> first,
                                        std::uint64_t file_bytes);

/// Reads header text (without the eight bytes of its length). Throws std::runtime_error with the
/// reason: not JSON, other members or types, an unknown dtype, a repeated name, or ranges that
/// overlap, leave holes, overflow, do not fit the shape or do not fill exactly `data_bytes`. Memory
/// stays within a small multiple of the text.
safetensors_header parse_safetensors_header(std::string_view text, std::uint64_t data_bytes);

/// The text for `header`, its eight bytes of length in front, padded with spaces to a multiple of
/// eight. Throws std::runtime_error for what parse_safetensors_header would refuse.
std::string render_safetensors_header(const safetensors_header& header, std::uint64_t data_bytes);

}  // namespace troupe
