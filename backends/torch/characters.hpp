// The characters that text models know: the newline and the printable ones of ASCII, numbered from
// 0.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::characters {

inline constexpr std::int64_t count = 96;
/// The longest text that a model looks at, and the length of a sample.
inline constexpr std::int64_t context = 64;

/// A tab becomes a blank. A character outside of ASCII becomes one '?'. Other control characters,
/// carriage returns included, are left out.
std::vector<std::uint8_t> numbers_of(std::string_view text);
/// Numbers from 0 to count - 1.
std::string text_of(std::span<const std::uint8_t> numbers);

}  // namespace troupe::characters
