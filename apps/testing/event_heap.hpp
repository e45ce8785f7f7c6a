// What is due, earliest first; of equals the one that was added first. A heap of four children per
// node in small entries: worlds of ten thousand ranks have tens of thousands of events pending.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::testing {

class event_heap {
public:
  struct entry {
    std::int64_t at = 0;
    std::uint64_t order_and_slot = 0;  ///< the low 24 bits are the slot
    std::uint32_t slot() const { return static_cast<std::uint32_t>(order_and_slot & slot_mask); }
    friend bool operator<(const entry& a, const entry& b) {
      return a.at != b.at ? a.at < b.at : a.order_and_slot < b.order_and_slot;
    }
  };
  static constexpr std::uint32_t slots_max = 1u << 24;

  bool empty() const { return all_.empty(); }
  void clear() { all_.clear(); }
  const entry& top() const { return all_.front(); }

  /// `slot` is below slots_max. At most 2^40 entries are added to one heap.
  void push(std::int64_t at, std::uint32_t slot) {
    const entry fresh{at, order_++ << slot_bits | slot};
    auto i = all_.size();
    all_.push_back(fresh);
    while (i > 0) {
      const auto parent = (i - 1) / width;
      if (!(fresh < all_[parent])) break;
      all_[i] = all_[parent];
      i = parent;
    }
    all_[i] = fresh;
  }

  entry pop() {
    const auto first = all_.front();
    const auto last = all_.back();
    all_.pop_back();
    const auto size = all_.size();
    if (size == 0) return first;
    std::size_t i = 0;
    while (true) {
      auto child = i * width + 1;
      if (child >= size) break;
      const auto end = std::min(child + width, size);
      auto least = child;
      for (++child; child < end; ++child)
        if (all_[child] < all_[least]) least = child;
      if (!(all_[least] < last)) break;
      all_[i] = all_[least];
      i = least;
    }
    all_[i] = last;
    return first;
  }

private:
  static constexpr std::size_t width = 4;
  static constexpr unsigned slot_bits = 24;
  static constexpr std::uint64_t slot_mask = slots_max - 1;

  std::vector<entry> all_;
  std::uint64_t order_ = 0;
};

}  // namespace troupe::testing
