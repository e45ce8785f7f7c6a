// One generation's ranks in this process, and their operations in order.
#pragma once

#include "backends/collective/group_end.hpp"
#include "backends/collective/scopes.hpp"
#include "backends/collective/waiting.hpp"
#include "backends/inproc/channel.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::inproc {

class group;

/// The state of one lane, in a cache line of its own, because lanes write it often.
struct alignas(64) presence {
  collectives::lane_waits::count waits{0};   ///< inside of wait()
  collectives::touching::count touching{0};  ///< threads that touch memory in a collective
};

/// One rank's seat in one (sub)group. Only its handle and its works share it, so the cache lines of
/// their reference counts do not move between cores.
struct place {
  std::shared_ptr<group> of;
  std::shared_ptr<channel> in;
  std::size_t member;
  presence& self;
  const work_ptr done = ended({work_status::ok, {}, {}});

  std::int32_t rank() const { return in->members[member]; }
};
using place_ptr = std::shared_ptr<const place>;

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
  place_ptr among(const std::vector<std::int32_t>& members, std::int32_t rank);

  /// Arrives at the next operation of `at`. The last member to arrive does the work that no waiter
  /// takes. `deadline` 0: none.
  static work_ptr submit(const place_ptr& at, submission&& with, std::chrono::nanoseconds deadline);
  static bool decide(const place_ptr& at, submission&& with, std::chrono::nanoseconds deadline);

  void abort(std::string_view why) noexcept;
  bool aborted() const noexcept { return end_.aborted(); }
  bool quiescent() const noexcept;
  /// The rank's lane is inside of wait().
  bool waits(std::int32_t rank) const noexcept {
    return presence_[static_cast<std::size_t>(rank)].waits.load(std::memory_order_relaxed) > 0;
  }
  /// A rank's handle is destroyed: operations that need the rank cannot end well any more.
  void depart(std::int32_t rank) noexcept;
  /// The first reason of `abort`.
  std::string why() const { return end_.why(); }

private:
  class waiting;

  struct arrival {
    operation* at = nullptr;  ///< null: it came too late
    std::uint64_t number = 0;
    bool last = false;
    bool ended_group = false;  ///< `close` has to follow
  };
  arrival arrive(channel& in, std::size_t member, submission&& with);
  arrival take_part(const place_ptr& at, submission&& with);
  work_ptr watch(const place_ptr& at, std::uint64_t number, std::chrono::nanoseconds deadline);
  void run(const place& at, operation& what);
  bool help(const place& at);
  void work_off(const place& at, operation& what);
  void finish(channel& in, operation& what);
  /// Called in the exception handler of a piece of work: keeps the exception for the rank `of`, and
  /// aborts.
  void fail(const presence& of, std::string_view why) noexcept;
  /// Throws what a piece of work threw while this rank's thread was in it.
  void raise_own(const presence& of);
  /// The result of an operation that failed; `arrived`: the rank called it before the abort.
  work_result verdict(const place& at, std::uint64_t number, bool arrived) const {
    return end_.result_of(at.in->id, number, at.rank(), arrived);
  }
  /// Once aborted: ends the operations of all channels.
  void close() noexcept;
  /// Ends an operation whose peers did not arrive in time. False if all of them did.
  bool expire(channel& in, std::uint64_t number, std::chrono::nanoseconds deadline);
  void settle() const noexcept;
  bool may_spin() const { return ranks_->load(std::memory_order_relaxed) <= cores_; }
  bool touched() const noexcept;

  const std::int32_t world_;
  const std::shared_ptr<const std::atomic<int>> ranks_;
  const int cores_;
  std::vector<presence> presence_;  // by world rank

  mutable std::mutex mutex_;  // before a channel's
  std::vector<std::shared_ptr<channel>> channels_;
  std::vector<std::int32_t> departed_;
  bool closed_ = false;
  std::exception_ptr thrown_;          // by the piece of work that ended the group
  const presence* thrower_ = nullptr;  // whose thread was in it
  alignas(64) collectives::group_end end_;
};

}  // namespace troupe::inproc
