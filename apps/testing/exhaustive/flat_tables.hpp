// Tables of numbers for a search: a set of 128-bit digests and a map from 64-bit keys.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <boost/unordered/unordered_flat_set.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::testing {

/// 128 bits of a state. Two states of one search meet with a chance of about n^2 / 2^129.
struct wide_digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const wide_digest&, const wide_digest&) = default;
};

constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ z >> 32) * 0xd6e8feb86659fd93;
  z = (z ^ z >> 32) * 0xd6e8feb86659fd93;
  return z ^ z >> 32;
}

inline wide_digest digest_of(std::span<const std::uint32_t> words) {
  std::uint64_t low = 0x243f6a8885a308d3;
  std::uint64_t high = 0x13198a2e03707344;
  for (const auto w : words) {
    low = mixed(low + w);
    high = mixed(high ^ (std::uint64_t{w} * 0x9e3779b97f4a7c15 + low));
  }
  return {low, high};
}

struct digest_hash {
  using is_avalanching = void;
  std::size_t operator()(const wide_digest& d) const { return d.low; }
};
struct key_hash {
  using is_avalanching = void;
  std::size_t operator()(std::uint64_t key) const { return mixed(key); }
};

using digest_set = boost::unordered_flat_set<wide_digest, digest_hash>;
using number_map = boost::unordered_flat_map<std::uint64_t, std::uint32_t, key_hash>;

/// What a table of Boost allocates: a byte of its own per element.
template <class Table>
std::uint64_t bytes_of(const Table& table) {
  return table.bucket_count() * (sizeof(typename Table::value_type) + 1);
}

}  // namespace troupe::testing
