// What is due, earliest first; of equals the one that was added first. What is due at one moment
// is a chain: ranks of one company do most things at the same time. The next chains are in a short
// sorted list, the others in a heap of four children per node: small worlds live in the list alone,
// wide ones have tens of thousands of events pending.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::testing {

class event_heap {
public:
  static constexpr std::uint32_t slots_max = 1u << 24;
  static constexpr std::uint32_t none = slots_max;
  struct due {
    std::int64_t at = 0;
    std::uint32_t slot = none;
  };

  bool empty() const { return now_.slot == none && next_.empty() && all_.empty(); }
  void clear() { *this = {}; }

  /// `at` is neither negative nor before what was taken last; `slot` is below slots_max and not
  /// pending. At most 2^40 are added to one heap.
  [[gnu::always_inline]] void push(std::int64_t at, std::uint32_t slot) {
    if (slot >= behind_.size()) behind_.resize(2 * std::size_t{slot} + 64, none);
    behind_[slot] = none;
    for (auto& o : open_) {
      if (o.at != at || o.slot == none) continue;
      behind_[o.slot] = slot;
      o.slot = slot;
      return;
    }
    open_[opened_++ % open_.size()] = {at, slot};
    const entry fresh{at, order_++ << slot_bits | slot};
    const bool sooner = !next_.empty() && fresh < next_.front();
    if (sooner || (all_.empty() && next_.size() < listed))
      list(fresh);
    else
      sift_up(fresh);
  }

  due pop() {
    if (now_.slot == none) {
      if (next_.empty()) fill();
      now_ = {next_.back().at, next_.back().slot()};
      next_.pop_back();
    }
    const auto first = now_;
    now_.slot = behind_[first.slot];
    if (now_.slot == none)
      for (auto& o : open_)
        if (o.slot == first.slot) o.slot = none;
    return first;
  }

  /// The slot that comes next, as far as that is known without looking for it; else none.
  std::uint32_t coming() const {
    if (now_.slot != none) return now_.slot;
    return next_.empty() ? none : next_.back().slot();
  }
  /// The one behind `slot`, if they are due at the same moment.
  std::uint32_t behind(std::uint32_t slot) const { return behind_[slot]; }

private:
  // The first of a chain.
  struct entry {
    std::int64_t at = 0;
    std::uint64_t order_and_slot = 0;
    std::uint32_t slot() const { return static_cast<std::uint32_t>(order_and_slot & slot_mask); }
    friend bool operator<(const entry& a, const entry& b) { return a.key() < b.key(); }

    // One number, so that no branch guesses which half decides.
    __extension__ using wide = unsigned __int128;
    wide key() const {
      return static_cast<wide>(static_cast<std::uint64_t>(at)) << 64 | order_and_slot;
    }
  };
  static constexpr std::size_t width = 4;
  static constexpr unsigned slot_bits = 24;
  static constexpr std::uint64_t slot_mask = slots_max - 1;
  static constexpr std::size_t listed = 128;

  [[gnu::always_inline]] void list(const entry& fresh) {
    if (next_.size() == listed) {
      make_room();
      if (!(fresh < next_.front())) return sift_up(fresh);
    }
    const auto later = [](const entry& a, const entry& b) { return b < a; };
    next_.insert(std::upper_bound(next_.begin(), next_.end(), fresh, later), fresh);
  }
  // The later half goes to the heap. Apart from `list`, which happens for most events.
  [[gnu::noinline]] void make_room() {
    for (std::size_t i = 0; i < listed / 2; ++i) sift_up(next_[i]);
    next_.erase(next_.begin(), next_.begin() + listed / 2);
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

  due now_;                            // the rest of the chain that is being taken
  std::vector<entry> next_;            // the earliest last; all of the heap comes behind them
  std::vector<entry> all_;             // the heap
  std::vector<std::uint32_t> behind_;  // by slot: the next of its chain
  // Chains that may still grow, with their last ones. One that was closed comes before a later one
  // of its moment as a whole.
  std::array<due, 4> open_{};
  std::size_t opened_ = 0;
  std::uint64_t order_ = 0;
};

}  // namespace troupe::testing
