// Tables of numbers for a search: a set of 128-bit digests and a map from 64-bit keys, both open
// addressed, growing by doubling, never shrinking.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

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

class digest_set {
public:
  digest_set() : slots_(std::size_t{1} << 12) {}

  /// Whether it was new.
  bool insert(wide_digest d) {
    if (d == wide_digest{}) d.low = 1;  // zero marks an empty slot
    if (count_ * 4 >= slots_.size() * 3) grow();
    if (!place(d)) return false;
    ++count_;
    return true;
  }
  std::uint64_t size() const { return count_; }
  std::uint64_t bytes() const { return slots_.size() * sizeof(wide_digest); }

private:
  bool place(const wide_digest& d) {
    const auto mask = slots_.size() - 1;
    for (auto i = static_cast<std::size_t>(d.low) & mask;; i = (i + 1) & mask) {
      if (slots_[i] == d) return false;
      if (slots_[i] != wide_digest{}) continue;
      slots_[i] = d;
      return true;
    }
  }
  void grow() {
    auto former = std::exchange(slots_, std::vector<wide_digest>(slots_.size() * 2));
    for (const auto& d : former)
      if (d != wide_digest{}) place(d);
  }

  std::vector<wide_digest> slots_;
  std::uint64_t count_ = 0;
};

/// Keys are any but ~0.
class number_map {
public:
  number_map() : slots_(std::size_t{1} << 12, slot{none, 0}) {}

  std::optional<std::uint32_t> find(std::uint64_t key) const {
    const auto& s = slots_[index_of(key)];
    return s.key == key ? std::optional{s.number} : std::nullopt;
  }
  void add(std::uint64_t key, std::uint32_t number) {
    if (++count_ * 3 >= slots_.size() * 2) {
      auto former = std::exchange(slots_, std::vector<slot>(slots_.size() * 2, slot{none, 0}));
      for (const auto& s : former)
        if (s.key != none) slots_[index_of(s.key)] = s;
    }
    slots_[index_of(key)] = {key, number};
  }
  std::uint64_t bytes() const { return slots_.size() * sizeof(slot); }

private:
  static constexpr std::uint64_t none = ~std::uint64_t{0};
  struct slot {
    std::uint64_t key;
    std::uint32_t number;
  };
  std::size_t index_of(std::uint64_t key) const {
    const auto mask = slots_.size() - 1;
    auto i = static_cast<std::size_t>(mixed(key)) & mask;
    while (slots_[i].key != key && slots_[i].key != none) i = (i + 1) & mask;
    return i;
  }

  std::vector<slot> slots_;
  std::uint64_t count_ = 0;
};

}  // namespace troupe::testing
