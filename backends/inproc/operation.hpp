// One collective of one (sub)group: who has arrived, with which memory, and the work it takes.
#pragma once

#include "backends/collective_call.hpp"
#include "backends/inproc/slices.hpp"

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

namespace troupe::inproc {

/// What one member brought.
struct seat {
  bool arrived = false;
  collective_call call;
  const void* in = nullptr;  ///< all_reduce, broadcast: the same as `out`
  void* out = nullptr;
  bool yes = false;
};

/// Everything but the atomics is guarded by the channel's mutex until the last member has arrived,
/// and constant from then on.
class operation {
public:
  explicit operation(std::size_t members) : seats_(members) {}

  /// Fills a seat and says if the call differs from those that arrived before.
  bool arrive(std::size_t member, seat with);
  bool complete() const { return arrived_ == seats_.size(); }
  const std::vector<seat>& seats() const { return seats_; }
  /// Call once, after the last arrival, before the first `work_off`. `root` as a member.
  void cut(std::size_t root_member);

  std::size_t slices_total() const { return slices_.total(); }
  /// Claims and does slices until none is left or `stop` is set. True for the caller that did the
  /// last one. Those with an even `member` begin at the front, the others at the end: two ranks
  /// meet in the middle and find the next time what is still in their own cache.
  bool work_off(const std::atomic<bool>& stop, std::size_t member);
  bool wants_help() const {
    return taken(claimed_.load(std::memory_order_relaxed)) < slices_.total() &&
           status() == work_status::pending;
  }
  bool verdict() const { return verdict_; }

  /// `pending` until it ends, which it does once; a text is set before.
  work_status status() const { return status_.load(std::memory_order_acquire); }
  /// False if it had ended before.
  bool end(work_status with);
  bool end(work_status with, std::string text, std::vector<std::int32_t> missing);
  const std::string& text() const { return text_; }
  const std::vector<std::int32_t>& missing() const { return missing_; }

private:
  // Slices claimed from the front in the low half of the word, from the end in the high half. It
  // runs past the total by one per thread at most; more than 2^32 slices do not fit into memory.
  static constexpr std::uint64_t one_from_end = std::uint64_t{1} << 32;
  static std::uint64_t from_front_of(std::uint64_t claimed) { return claimed % one_from_end; }
  static std::uint64_t from_end_of(std::uint64_t claimed) { return claimed / one_from_end; }
  static std::uint64_t taken(std::uint64_t claimed) {
    return from_front_of(claimed) + from_end_of(claimed);
  }

  void run(const slice& what) const;
  void reduce(const slice& what, std::size_t offset) const;
  void copy(const slice& what, std::size_t offset, std::size_t piece_bytes) const;

  std::vector<seat> seats_;
  std::size_t arrived_ = 0;
  std::size_t root_ = 0;
  slices slices_;
  bool verdict_ = false;
  std::string text_;
  std::vector<std::int32_t> missing_;
  alignas(64) std::atomic<std::uint64_t> claimed_{0};
  std::atomic<std::size_t> done_{0};
  std::atomic<bool> ending_{false};
  std::atomic<work_status> status_{work_status::pending};
};

}  // namespace troupe::inproc
