// A hash that is the same on every host, build and run, for digests of machines and simulations and
// for sets of visited states. Not cryptographic.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

namespace troupe {

/// Hashes a sequence of numbers and texts; `digest()` depends on each of them and on their order.
/// Equal numbers hash alike, whatever their integer type.
class stable_hasher {
public:
  template <class T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) stable_hasher& add(T x) {
    return take(static_cast<std::uint64_t>(static_cast<std::int64_t>(x)));
  }
  /// Hashes the bits; -0.0 counts as 0.0, and all NaN are alike.
  stable_hasher& add(double x) {
    if (x != x) return take(0x7ff8000000000000);
    return take(x == 0 ? 0 : std::bit_cast<std::uint64_t>(x));
  }
  stable_hasher& add(std::string_view text) {
    take(text.size());
    for (; text.size() >= 8; text.remove_prefix(8)) take(block_of(text.substr(0, 8)));
    return text.empty() ? *this : take(block_of(text));
  }
  template <class T>
  stable_hasher& add(const std::optional<T>& x) {
    add(x.has_value());
    return x ? add(*x) : *this;
  }
  std::uint64_t digest() const { return mixed(state_); }

private:
  // Up to 8 bytes, the first one lowest.
  static std::uint64_t block_of(std::string_view bytes) {
    std::uint64_t block = 0;
    if constexpr (std::endian::native == std::endian::little) {
      std::memcpy(&block, bytes.data(), bytes.size());
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i)
        block |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return block;
  }
  // SplitMix64's output function: every input bit reaches every output bit.
  static constexpr std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  stable_hasher& take(std::uint64_t x) {
    state_ = mixed(state_ * 0x9e3779b97f4a7c15 + x + 0x632be59bd9b4e019);
    return *this;
  }

  std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

}  // namespace troupe
