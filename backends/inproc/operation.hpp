// One collective of one (sub)group: the members that have arrived, their memory, and the work.
#pragma once

#include "backends/collective/slices.hpp"
#include "backends/collective/submission.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::inproc {

using collectives::submission;

/// The call and the memory of one member. Others read its first cache line; they need the second
/// for few operations.
struct alignas(64) seat {
  collective_call call;
  const void* in = nullptr;
  std::uint64_t turn = 0;  ///< of the operation: what is older was brought to another one
  alignas(64) void* out = nullptr;
  bool yes = false;
  communicator::shared_body body;  ///< work_together only
};
static_assert(sizeof(seat) == 128);

/// Everything but the atomics is guarded by the channel's mutex until the last member has arrived,
/// and constant from then on, until it is renewed.
class operation {
public:
  explicit operation(std::size_t members) : seats_(members) {}

  /// Resets this object for the operation `number`, and keeps its memory. Requires `forgotten`.
  void renew(std::uint64_t number);
  /// A helper calls `enter` before it helps and `leave` after, because the operation may have ended
  /// meanwhile; no memory is reused in between. Thread-safe.
  void leave() { helpers_.fetch_sub(1, std::memory_order_acq_rel); }
  void enter() { helpers_.fetch_add(1, std::memory_order_acq_rel); }
  bool forgotten() const { return helpers_.load(std::memory_order_acquire) == 0; }

  std::uint64_t number() const { return turn_ - 1; }
  /// Takes a seat. True if the call differs from that of the member that arrived first.
  bool arrive(std::size_t member, submission&& with);
  bool complete() const { return arrived_ == seats_.size(); }
  bool arrived(std::size_t member) const { return seats_[member].turn == turn_; }
  const std::vector<seat>& seats() const { return seats_; }
  const seat& first() const { return seats_[first_]; }
  /// Opens the work to `work_off`. Call once, after the last arrival. `root` as a member.
  void cut(std::size_t root_member);

  std::size_t slices_total() const { return slices_.total(); }
  /// There is more than one slice, and not all are claimed. Thread-safe, also before `cut`.
  bool wants_help() const {
    return open_.load(std::memory_order_acquire) && unclaimed(claimed_.load()) != 0;
  }
  /// Claims and does slices until none is left or `stop` is set. True for the caller that did the
  /// last ones. Those with an even `member` begin at the front, the others at the end, so that two
  /// ranks find their slices of the previous operation in their own caches.
  bool work_off(const std::atomic<bool>& stop, std::size_t member);
  /// The same where there is one slice: all of it. False if `stop` is set.
  bool work_off_whole(const std::atomic<bool>& stop) const;
  bool verdict() const { return verdict_; }
  /// No thread calls the body any more: releases it.
  void drop_body() { seats_[0].body = nullptr; }

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

  // One cache line: every arrival writes to it.
  alignas(64) std::vector<seat> seats_;
  std::uint32_t arrived_ = 0;
  std::uint32_t first_ = 0;  // member that arrived first
  std::uint64_t turn_ = 0;   // its number, counted from one
  std::uint32_t root_ = 0;
  bool verdict_ = false;
  std::atomic<bool> open_{false};  // there is more to do than one slice
  std::atomic<std::uint32_t> helpers_{0};
  // Used by large operations only.
  alignas(64) slices slices_;
  std::atomic<std::uint64_t> claimed_{0};
  std::atomic<std::size_t> done_{0};
};

}  // namespace troupe::inproc
