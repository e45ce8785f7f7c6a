// What is due, earliest first; of equals the one that was added first. What is due at one moment
// is a chain: ranks of one job do most things at the same time. The next chains are in a short
// sorted list, the others in a heap of four children per node: small worlds live in the list alone,
// wide ones have tens of thousands of events pending.
//
// With 10,000 ranks std::priority_queue costs 11 % of the deliveries per second, and
// boost::heap::d_ary_heap 8 %. With 8 ranks they cost at most 4 %.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

  bool empty() const { return now_.slot == none && count_ == 0 && all_.empty(); }
  void clear() { *this = {}; }

  /// `at` is neither negative nor before what was taken last; `slot` is below slots_max and not
  /// pending. At most 2^40 are added to one heap.
  [[gnu::always_inline]] void push(std::int64_t at, std::uint32_t slot) {
    if (slot >= behind_.size()) behind_.resize(2 * std::size_t{slot} + 64, none);
    behind_[slot] = none;
    for (auto& o : open_) {
      if (o.at != at) continue;
      behind_[o.slot] = slot;
      o.slot = slot;
      return;
    }
    open_[opened_++ % open_.size()] = {at, slot};
    const entry fresh{at, order_++ << slot_bits | slot};
    const bool sooner = count_ > 0 && at < next_.front().at;
    if (sooner || (all_.empty() && count_ < listed))
      list(fresh);
    else
      sift_up(fresh);
  }

  [[gnu::always_inline]] due pop() {
    if (now_.slot == none) {
      if (count_ == 0) fill();
      const auto& soonest = next_[--count_];
      now_ = {soonest.at, soonest.slot()};
    }
    const auto first = now_;
    now_.slot = behind_[first.slot];
    if (now_.slot == none)
      for (auto& o : open_)
        if (o.slot == first.slot) o = closed;
    return first;
  }

  /// The slot that comes next, as far as that is known without looking for it; else none.
  std::uint32_t coming() const {
    if (now_.slot != none) return now_.slot;
    return count_ == 0 ? none : next_[count_ - 1].slot();
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

  // The place is after all events of the same moment, because these were added before.
  [[gnu::always_inline]] void list(const entry& fresh) {
    if (count_ == listed) {
      make_room();
      if (next_.front().at <= fresh.at) return sift_up(fresh);
    }
    auto* const end = next_.data() + count_++;
    auto* place = next_.data();
    // A search without branches: the processor could not predict them, as times are arbitrary.
    for (auto left = static_cast<std::size_t>(end - place); left > 0;) {
      const auto half = (left + 1) / 2;
      place += place[half - 1].at > fresh.at ? half : 0;
      left -= half;
    }
    std::memmove(place + 1, place, static_cast<std::size_t>(end - place) * sizeof *place);
    *place = fresh;
  }
  // The later half goes to the heap. Apart from `list`, which happens for most events.
  [[gnu::noinline]] void make_room() {
    for (std::size_t i = 0; i < listed / 2; ++i) sift_up(next_[i]);
    count_ = listed - listed / 2;
    std::copy_n(next_.end() - static_cast<std::ptrdiff_t>(count_), count_, next_.begin());
  }
  void fill() {
    count_ = std::min(listed / 2, all_.size());
    for (auto i = count_; i-- > 0;) next_[i] = take();
  }

  [[gnu::noinline]] void sift_up(const entry& fresh) {
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

  due now_;                         // the rest of the chain that is being taken
  std::array<entry, listed> next_;  // the `count_` earliest entries, the earliest last
  std::size_t count_ = 0;
  std::vector<entry> all_;             // the heap
  std::vector<std::uint32_t> behind_;  // by slot: the next of its chain
  // Chains that may still grow, with their last ones. One that was closed comes before a later one
  // of its moment as a whole.
  static constexpr due closed{-1, none};
  std::array<due, 4> open_{closed, closed, closed, closed};
  std::size_t opened_ = 0;
  std::uint64_t order_ = 0;
};

}  // namespace troupe::testing
