// The header of a safetensors file: which tensor lies where. Nothing in it is believed before it
// has been checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// One tensor's place: [begin, end) counted from the first byte behind the header.
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

/// What a header may cost. Writers keep to them too, so whatever was written can be read.
namespace safetensors_limits {
inline constexpr std::uint64_t header_bytes = std::uint64_t{100} << 20;  ///< as the Python package
inline constexpr std::size_t entries = std::size_t{1} << 20;
inline constexpr std::size_t dimensions = 64;
}  // namespace safetensors_limits

/// Bytes of one element; 0 for a dtype that is not known here.
std::size_t safetensors_element_size(std::string_view dtype);

/// The header's length as the first eight bytes of a file of `file_bytes` bytes say it. Throws
/// std::runtime_error when it is beyond the file or the limit. Thread-safe, as all here.
std::uint64_t safetensors_header_length(std::span<const std::byte, 8> first,
                                        std::uint64_t file_bytes);

/// Reads header text (without the eight bytes of its length). Throws std::runtime_error saying what
/// is wrong: not JSON, other members or types, unknown dtype, a name twice, ranges that overlap,
/// leave holes, overflow, do not fit the shape or do not fill exactly `data_bytes`. Memory stays
/// within a small multiple of the text.
safetensors_header parse_safetensors_header(std::string_view text, std::uint64_t data_bytes);

/// The text for `header`, its eight bytes of length in front, padded with spaces to a multiple of
/// eight. Throws std::runtime_error for what parse_safetensors_header would refuse.
std::string render_safetensors_header(const safetensors_header& header, std::uint64_t data_bytes);

}  // namespace troupe
