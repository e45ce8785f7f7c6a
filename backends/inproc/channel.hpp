// The operations of one (sub)group of thread ranks, one after the other.
#pragma once

#include "backends/collective/waiting.hpp"
#include "backends/inproc/operation.hpp"

#include <array>
#include <memory>
#include <vector>

namespace troupe::inproc {

// Prefetches a cache line for writing; the memory may already be freed. Without `volatile` the
// compiler would remove the instruction.
inline void fetch_to_write(const void* line) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" : : "r"(line));
#else
  __builtin_prefetch(line, 1);
#endif
}

/// Most of the cost of a small operation is cache lines that move between cores. So the fields that
/// each arrival writes share lines, the fields that waiters read share others, and no counter is
/// incremented by all ranks.
///
/// Operations are numbered from 0. At those below `first` all members have arrived; they end in
/// order. One atomic, `ended`, holds how many have ended well and whether the channel is closed.
/// Members are guarded by `mutex` unless said otherwise.
struct channel {
  channel(std::uint64_t id, std::vector<std::int32_t> ranks);
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  std::size_t member(std::int32_t rank) const { return place_among(members, rank); }
  /// The operation `number`, one of those from first - 1 to reached - 1.
  operation& at(std::uint64_t number) const { return *ring[number & (ring.size() - 1)]; }
  /// Makes room for the operation `reached`; reuses the memory of an old one that no helper uses.
  /// An operation keeps its arguments until all members have arrived at the second one after it.
  operation& open_next();

  /// Thread-safe, like the functions below. No operation ends well after this.
  void close() noexcept { ended.fetch_or(closed, std::memory_order_seq_cst); }
  /// Records that the operation ended well; false if the channel was closed before.
  bool end(std::uint64_t number) noexcept {
    return ended.compare_exchange_strong(number, number + 1, std::memory_order_seq_cst);
  }
  work_status status(std::uint64_t number) const noexcept {
    const auto word = ended.load(std::memory_order_seq_cst);
    if ((word & ~closed) > number) return work_status::ok;
    return (word & closed) != 0 ? work_status::aborted : work_status::pending;
  }
  bool over(std::uint64_t number) const noexcept { return status(number) != work_status::pending; }
  std::uint64_t ended_well() const noexcept {
    return ended.load(std::memory_order_seq_cst) & ~closed;
  }

  /// True if the member was last seen on the core of another member.
  bool shares_core(std::size_t member) const noexcept;

  static constexpr std::size_t ring_least = 4;  ///< previous, current and next; a power of two
  static constexpr std::uint64_t closed = std::uint64_t{1} << 63;
  /// The state that only one member uses.
  struct alignas(64) own_words {
    std::uint64_t submitted = 0;
    /// The addresses of the operations one ring ago. Prefetching may use an outdated address.
    struct memory {
      const operation* at = nullptr;
      const seat* seats = nullptr;
    };
    std::array<memory, ring_least> seen{};

    void see(std::uint64_t number, const operation& at) {
      seen[number % ring_least] = {&at, at.seats().data()};
    }
    /// The member that completes an operation arrives first at the next one. This prefetches the
    /// lines that it will write there, while it still works on the current one.
    void fetch_next(std::size_t member) const {
      const auto& next = seen[submitted % ring_least];
      if (!next.at) return;
      fetch_to_write(next.at);
      fetch_to_write(next.seats + member);
    }
  };

  struct alignas(64) spot {
    whereabouts core;
  };

  const std::uint64_t id;  ///< within the group
  const std::vector<std::int32_t> members;
  std::vector<spot> spots;     ///< of each member; not guarded
  std::vector<own_words> own;  ///< by member; each member uses only its own
  // What arrivals write.
  alignas(64) brief_mutex mutex;
  std::int32_t departed = -1;                    ///< a member that has gone, or -1
  std::uint64_t first = 0;                       ///< the oldest that lacks a member's arrival
  std::uint64_t reached = 0;                     ///< the first without any arrival
  std::vector<std::shared_ptr<operation>> ring;  ///< a power of two of them
  // What waiters look at.
  alignas(64) std::atomic<std::uint64_t> ended{0};  ///< how many ended well; or `closed`
  bell changes;                                     ///< rung when waiters may have something to do
  std::atomic<bool> help_wanted{false};             ///< the latest operation has slices left
};

}  // namespace troupe::inproc
