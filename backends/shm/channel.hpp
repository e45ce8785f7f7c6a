// One rank's side of a (sub)group: carries its operations out, one after the other.
#pragma once

#include "backends/collective/slices.hpp"
#include "backends/shm/layout.hpp"
#include "backends/shm/operation.hpp"
#include "backends/shm/slot_writer.hpp"

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

namespace troupe::shm {

class member;

/// The lane submits operations. One thread at a time drives (carries them out): the one that
/// submits, waits or polls, or the handle's own thread. Only `wait` blocks.
class channel {
public:
  channel(member& of, std::size_t index, std::vector<std::int32_t> members);
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  std::size_t index() const { return index_; }
  const std::vector<std::int32_t>& members() const { return members_; }
  std::size_t self() const { return self_; }

  /// Lane only. Begins it if it can. `keep` is this channel, with its member.
  std::shared_ptr<operation> submit(std::shared_ptr<channel> keep, submission what,
                                    std::chrono::nanoseconds deadline);
  /// Returns when `what` has ended.
  void wait(operation& what);
  void poll(operation& what);

  /// Drives as far as possible without waiting, unless another thread drives. True if something is
  /// left.
  bool drive();
  bool idle() const { return open_.load(std::memory_order_seq_cst) == 0; }
  /// A thread is inside of `wait`, and drives.
  bool waited() const { return waiters_.load(std::memory_order_seq_cst) != 0; }
  /// Inserts the members that an operation may wait for: those a step behind this rank, or all if
  /// there are none. Without driving, so it sees what is published only.
  void insert_late(rank_set& into) const noexcept;
  /// Why this rank must end the group when it leaves; empty if it need not.
  std::string needed();

private:
  enum class outcome : std::uint8_t { moved, blocked, ended };
  class driving;

  bool begin_at_once(const std::shared_ptr<operation>& next);

  // Steps of the driving thread.
  bool advance();
  void begin(std::shared_ptr<operation> next);
  outcome step();
  outcome meet();
  outcome refuse();
  bool agree() const;
  void plan();
  bool do_stage(const stage& what, bool unless_aborted) noexcept;
  bool publish();
  outcome reduce_in_place();
  bool take_share(shared_work& work) noexcept;
  outcome complete();
  outcome end_closed();
  void finish(work_result how);
  void notify_waiters();
  work_result verdict_of_abort() const;
  bool look_at_clock(operation& what);
  std::vector<std::int32_t> behind(const operation& what) const;
  bool may_advance() const noexcept;
  std::uint64_t position() const;

  // Where things are. Members by their place in the channel.
  seat_block& seat_of(std::size_t m) const;
  post& post_of(std::size_t m, std::uint64_t step) const;
  bool reached(std::size_t m, std::uint64_t step) const;
  std::uint64_t last_published(std::size_t m) const noexcept;
  bool all_reached(std::uint64_t step) const;
  collective_call call_of(std::size_t m) const;
  shared_work& shared() const;

  // transfer.cpp: chunks into the slots and out of them.
  struct range {
    std::size_t first = 0;  // element of the tensor, or of each piece
    std::size_t count = 0;
  };
  std::size_t bytes_to_fill() const;
  void cut(form how);
  range chunk(std::uint64_t number) const;
  range slice_of(std::size_t elements, std::size_t m) const;
  std::byte* slot(std::size_t m, std::uint64_t of_chunk) const;
  void fill(std::uint64_t number);
  void reduce(std::uint64_t number);
  void drain(std::uint64_t number) const;
  void reduce_own(std::uint64_t number, std::size_t in_memory, std::size_t in_slots,
                  std::size_t count) const;
  void reduce_between(const slice& what) const;

  member& member_;
  const std::size_t index_;
  const std::vector<std::int32_t> members_;
  const std::size_t self_;

  brief_mutex mutex_;
  std::deque<std::shared_ptr<operation>> queue_;  // submitted, not begun
  std::uint64_t submitted_ = 0;                   // the lane's
  std::atomic<std::uint64_t> open_{0};            // queued or begun
  std::atomic<bool> driven_{false};
  std::atomic<std::uint32_t> waiters_{0};
  std::atomic<std::uint32_t> blocked_{0};  // waiters while another thread drives

  // For the driving thread only: the operation in progress.
  std::shared_ptr<operation> head_;
  std::uint64_t base_ = 0;  // its first step
  std::uint64_t at_ = 0;    // the step at hand, counted from there
  std::size_t met_ = 0;     // members known to have published the step before
  schedule schedule_;
  bool planned_ = false;
  std::uint64_t in_place_ = 0;  // operations on registered buffers so far, with this one
  slices slices_;
  std::size_t chunk_elements_ = 0;
  slot_writer writer_;
};

}  // namespace troupe::shm
