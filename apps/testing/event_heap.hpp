// What is due, earliest first; of equals the one that was added first. In small entries, because
// wide worlds have tens of thousands of events pending: the next ones in a short sorted list, the
// others in a heap of four children per node. Small worlds live in the list alone.
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
    friend bool operator<(const entry& a, const entry& b) { return a.key() < b.key(); }

  private:
    // One number, so that no branch guesses which half decides.
    __extension__ using wide = unsigned __int128;
    wide key() const {
      return static_cast<wide>(static_cast<std::uint64_t>(at)) << 64 | order_and_slot;
    }
  };
  static constexpr std::uint32_t slots_max = 1u << 24;

  bool empty() const { return next_.empty() && all_.empty(); }
  void clear() {
    next_.clear();
    all_.clear();
  }

  /// `at` is not negative, `slot` below slots_max. At most 2^40 entries are added to one heap.
  void push(std::int64_t at, std::uint32_t slot) {
    const entry fresh{at, order_++ << slot_bits | slot};
    const bool sooner = !next_.empty() && fresh < next_.front();
    if (sooner || (all_.empty() && next_.size() < listed))
      list(fresh);
    else
      sift_up(fresh);
  }

  entry pop() {
    if (next_.empty()) fill();
    const auto first = next_.back();
    next_.pop_back();
    return first;
  }

  /// What comes behind `ahead` others, as far as that is known without looking for it; else null.
  const entry* coming(std::size_t ahead) const {
    return ahead < next_.size() ? &next_[next_.size() - 1 - ahead] : nullptr;
  }

private:
  static constexpr std::size_t width = 4;
  static constexpr unsigned slot_bits = 24;
  static constexpr std::uint64_t slot_mask = slots_max - 1;
  static constexpr std::size_t listed = 128;

  void list(const entry& fresh) {
    if (next_.size() == listed) {  // the later half makes room
      for (std::size_t i = 0; i < listed / 2; ++i) sift_up(next_[i]);
      next_.erase(next_.begin(), next_.begin() + listed / 2);
      if (!(fresh < next_.front())) return sift_up(fresh);
    }
    const auto later = [](const entry& a, const entry& b) { return b < a; };
    next_.insert(std::upper_bound(next_.begin(), next_.end(), fresh, later), fresh);
  }
  void fill() {
    for (std::size_t i = 0; i < listed / 2 && !all_.empty(); ++i) next_.push_back(take());
    std::reverse(next_.begin(), next_.end());
  }

  void sift_up(const entry& fresh) {
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
  entry take() {
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

  std::vector<entry> next_;  // the earliest last; all of the heap comes behind them
  std::vector<entry> all_;   // the heap
  std::uint64_t order_ = 0;
};

}  // namespace troupe::testing
