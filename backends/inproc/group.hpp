// One generation's ranks in this process, and their operations in order.
#pragma once

#include "backends/inproc/operation.hpp"
#include "backends/waiting.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::inproc {

/// The operations of one (sub)group, n-th by n-th. Guarded by `mutex` unless said otherwise.
struct channel {
  explicit channel(std::vector<std::int32_t> ranks)
      : members(std::move(ranks)), submitted(members.size(), 0) {}
  std::size_t member(std::int32_t rank) const;
  /// An operation that nobody has arrived at, from memory that served before if there is some.
  std::shared_ptr<operation> renewed();

  const std::vector<std::int32_t> members;
  // What each arrival touches, together: of all that a small operation costs, most is cache lines
  // that go from core to core.
  alignas(64) brief_mutex mutex;
  std::uint64_t first = 0;                         ///< number of window.front()
  std::vector<std::shared_ptr<operation>> window;  ///< not yet complete, in order
  std::vector<std::uint64_t> submitted;            ///< by each member
  std::shared_ptr<operation> latest;               ///< the last one that everybody arrived at
  std::shared_ptr<operation> spare;                ///< forgotten, or null
  std::int32_t departed = -1;                      ///< a member that has gone, or -1
  std::shared_ptr<operation> disagreed;            ///< stays for members that arrive later ...
  std::uint64_t disagreed_at = 0;                  ///< ... at this number
  // What waiters look at.
  alignas(64) bell changes;              ///< rung when they may have something to do
  std::atomic<bool> help_wanted{false};  ///< `latest` has slices left
};

/// Shared by the handles and the works of one generation. Thread-safe.
class group : public std::enable_shared_from_this<group> {
public:
  /// `ranks`: how many are open on these `cores`, in this group and others. While they are no
  /// more than cores, waiters spin.
  group(std::int32_t world, std::shared_ptr<const std::atomic<int>> ranks, int cores)
      : world_(world),
        ranks_(std::move(ranks)),
        cores_(cores),
        presence_(static_cast<std::size_t>(world)) {}

  std::int32_t world() const { return world_; }
  std::shared_ptr<channel> among(const std::vector<std::int32_t>& members);

  /// Takes part in the next operation of `in`. The last to arrive does what no waiter helps with.
  /// `deadline` 0: none.
  work_ptr submit(const std::shared_ptr<channel>& in, std::size_t member, seat with,
                  std::chrono::nanoseconds deadline);
  bool decide(const std::shared_ptr<channel>& in, std::size_t member, seat with,
              std::chrono::nanoseconds deadline);

  void abort(std::string_view why) noexcept;
  bool aborted() const noexcept { return aborted_.load(std::memory_order_seq_cst); }
  bool quiescent() const noexcept;
  /// The rank's lane is inside of wait().
  bool waits(std::int32_t rank) const noexcept {
    return presence_[static_cast<std::size_t>(rank)].waits.load(std::memory_order_relaxed);
  }
  /// A rank's handle is gone: what needs it can not end well any more.
  void depart(std::int32_t rank) noexcept;
  /// The first reason of `abort`.
  std::string why() const;

private:
  class waiting;

  struct arrival {
    std::shared_ptr<operation> at;
    bool last = false;
    std::string abort_with;  ///< not empty: the group has to end for this
  };
  arrival arrive(channel& in, std::size_t member, seat with);
  static void complete(channel& in, const std::shared_ptr<operation>& what);
  void run(channel& in, operation& what, std::size_t member);
  bool help(channel& in, std::size_t member);
  void work_off(channel& in, operation& what, std::size_t member);
  /// Ends an operation whose peers did not arrive in time. False if all of them did.
  bool expire(channel& in, operation& what, std::chrono::nanoseconds deadline);
  void settle() const noexcept;
  bool may_spin() const { return ranks_->load(std::memory_order_relaxed) <= cores_; }
  bool touched() const noexcept;

  const std::int32_t world_;
  const std::shared_ptr<const std::atomic<int>> ranks_;
  const int cores_;
  struct alignas(64) presence {             // a cache line each: lanes write them all the time
    std::atomic<bool> waits{false};         // inside of wait()
    std::atomic<std::int32_t> touching{0};  // threads inside of work_off
  };
  presence& at_rank(std::int32_t rank) { return presence_[static_cast<std::size_t>(rank)]; }
  std::vector<presence> presence_;  // by world rank

  mutable std::mutex mutex_;  // before a channel's
  std::vector<std::shared_ptr<channel>> channels_;
  std::vector<std::int32_t> departed_;
  std::string why_;
  std::atomic<bool> aborted_{false};
};

}  // namespace troupe::inproc
