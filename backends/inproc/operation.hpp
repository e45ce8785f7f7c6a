// One collective of one (sub)group: who has arrived, with which memory, and the work it takes.
#pragma once

#include "backends/collective_call.hpp"
#include "backends/slices.hpp"

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
  communicator::shared_body body;  ///< work_together only
};

/// Everything but the atomics is guarded by the channel's mutex until the last member has arrived,
/// and constant from then on.
class operation {
public:
  explicit operation(std::size_t members) : seats_(members), users_(members) {}

  /// As new, with the memory it has. Only when `forgotten`.
  void renew();
  /// A member that arrived lets go of it; one that is at work in it without having arrived comes
  /// and goes. Thread-safe.
  void leave() { users_.fetch_sub(1, std::memory_order_acq_rel); }
  void enter() { users_.fetch_add(1, std::memory_order_acq_rel); }
  /// Nobody uses it any more.
  bool forgotten() const { return users_.load(std::memory_order_acquire) == 0; }

  /// Fills a seat and says if the call differs from those that arrived before.
  bool arrive(std::size_t member, seat with);
  bool complete() const { return arrived_ == seats_.size(); }
  const std::vector<seat>& seats() const { return seats_; }
  /// Opens the work to `work_off`. Call once, after the last arrival. `root` as a member.
  void cut(std::size_t root_member);

  std::size_t slices_total() const { return slices_.total(); }
  /// There is more than one slice, and some that nobody has claimed. Thread-safe, also before
  /// `cut`.
  bool wants_help() const {
    return open_.load(std::memory_order_acquire) && unclaimed(claimed_.load()) != 0;
  }
  /// Claims and does slices until none is left or `stop` is set. True for the caller that did the
  /// last ones. Those with an even `member` begin at the front, the others at the end: two ranks
  /// meet in the middle and find the next time what is still in their own cache.
  bool work_off(const std::atomic<bool>& stop, std::size_t member);
  bool verdict() const { return verdict_; }

  /// `pending` until it ends, which it does once; a text is set before.
  work_status status() const { return status_.load(std::memory_order_seq_cst); }
  /// False if it had ended before.
  bool end(work_status with);
  bool end(work_status with, std::string text, std::vector<std::int32_t> missing);
  const std::string& text() const { return text_; }
  const std::vector<std::int32_t>& missing() const { return missing_; }

private:
  // Slices claimed from the front in the low half of a word, from the end in the high half: more
  // than 2^32 of them do not fit into memory.
  struct claim {
    std::uint64_t front;
    std::uint64_t end;
  };
  static claim split(std::uint64_t word) { return {word & 0xffffffffu, word >> 32}; }
  std::uint64_t unclaimed(std::uint64_t word) const {
    return slices_.total() - split(word).front - split(word).end;
  }

  void run(const slice& what) const;
  void call_body(std::size_t piece) const;
  void reduce(const slice& what, std::size_t offset) const;
  void copy(const slice& what, std::size_t offset, std::size_t piece_bytes) const;

  std::vector<seat> seats_;
  std::size_t arrived_ = 0;
  std::size_t root_ = 0;
  slices slices_;
  bool verdict_ = false;
  std::string text_;
  std::vector<std::int32_t> missing_;
  std::atomic<std::uint64_t> claimed_{0};
  std::atomic<std::size_t> done_{0};
  std::atomic<bool> ending_{false};
  std::atomic<std::size_t> users_;
  // Waiters look at these all the time: a cache line of their own.
  alignas(64) std::atomic<work_status> status_{work_status::pending};
  std::atomic<bool> open_{false};  // there is more to do than one slice
};

}  // namespace troupe::inproc
