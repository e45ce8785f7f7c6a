// One generation of simulated ranks: its members and its operations in order.
#pragma once

#include "backends/simulated/fabric.hpp"

#include <cstddef>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace troupe::simulated {

/// State shared by all groups of a network.
struct network_state {
  later_fn later;
  std::function<std::chrono::nanoseconds()> now;
  network_cost cost;
  met_fn met;                       ///< empty: arrivals are not reported
  std::set<std::int32_t> isolated;  ///< blocked ranks
  std::size_t handles = 0;          ///< number of open ones
};

/// One rank's part of a group.
struct member {
  std::int32_t rank = 0;
  std::shared_ptr<const fabric_endpoint> endpoint;
  bool vanished = false;  ///< dead: neither acts nor receives
  bool departed = false;  ///< its handle is closed
  bool aborted = false;
  std::string why;
  std::size_t open = 0;  ///< its pending operations
};

/// What one member contributes to an operation.
struct endpoint_call {
  collective_call call;
  const void* in = nullptr;
  void* out = nullptr;
  bool yes = false;
};

/// One operation of a group or subgroup.
struct operation {
  /// One member's view of it. It lies in the operation and shares its lifetime.
  class part final : public work {
  public:
    work_result poll() override;
    void wait() override;

    std::shared_ptr<member> who;
    const operation* whole = nullptr;
    void* out = nullptr;
    bool arrived = false;
    bool yes = false;
    work_status status = work_status::pending;

  private:
    work_status now() const {
      return status == work_status::pending && who->aborted ? work_status::aborted : status;
    }
  };
  operation(std::size_t members, const collective_call& of) : call(of), parts(members) {}

  std::vector<arrival> arrivals;  ///< by part; empty if arrivals are not reported
  const collective_call call;     ///< the same on all members; a different call ends the group
  std::vector<part> parts;
  std::vector<std::byte> brought;  ///< by part; empty if no member has memory
  std::size_t arrived = 0;
  bool met = false;  ///< all members arrived and the result is known
  bool verdict = false;
  std::vector<std::byte> result;
  std::string text;
  std::vector<std::int32_t> missing;
  std::chrono::nanoseconds deadline{0};
  std::chrono::nanoseconds due{0};
};

/// The operations of one set of members, in order.
struct channel {
  explicit channel(std::vector<std::int32_t> ranks)
      : members(std::move(ranks)), submitted(members.size(), 0) {}
  const std::vector<std::int32_t> members;
  std::vector<std::uint64_t> submitted;
  std::deque<std::shared_ptr<operation>> window;  ///< not all members have arrived
  std::uint64_t first = 0;                        ///< number of window.front()
  std::chrono::nanoseconds busy_until{0};         ///< operations use the wires one after the other

  std::size_t index_of(std::int32_t rank) const;
};

class fabric_group : public std::enable_shared_from_this<fabric_group> {
public:
  fabric_group(network_state& network, const group_description& who)
      : network_(network), members_(static_cast<std::size_t>(who.world)) {}

  std::shared_ptr<member> join(const group_description& who,
                               std::shared_ptr<const fabric_endpoint> endpoint);
  std::shared_ptr<channel> among(const std::vector<std::int32_t>& ranks);
  std::shared_ptr<channel> everybody();
  work_ptr submit(const std::shared_ptr<member>& me, const std::shared_ptr<channel>& in,
                  endpoint_call with, std::chrono::nanoseconds deadline);
  bool verdict(const work& of) const;
  /// Ends the group for `from` at once, and for every member it reaches after that member's delay.
  void abort(member& from, std::string why) noexcept;
  void depart(member& who) noexcept;
  void vanish(std::uint32_t process);
  /// A rank is no longer blocked.
  void go_on();

private:
  void meet(const std::shared_ptr<channel>& in, const std::shared_ptr<operation>& what);
  void complete(const std::shared_ptr<channel>& in, const std::shared_ptr<operation>& what);
  void finish(operation& what, std::size_t index, member& who);
  void end(member& who, const std::string& why) noexcept;
  void watch(const std::shared_ptr<channel>& in, const std::shared_ptr<operation>& what);
  void look_at_clock();
  void expire(const std::shared_ptr<channel>& in, const std::shared_ptr<operation>& what);
  bool any_isolated(const channel& in) const;

  network_state& network_;
  std::vector<std::shared_ptr<member>> members_;  ///< by rank; null before it joined
  std::vector<std::shared_ptr<channel>> channels_;
  bool any_departed_ = false;
  struct open_operation {
    std::shared_ptr<channel> in;
    std::shared_ptr<operation> what;
  };
  std::vector<open_operation> stalled_;  ///< all arrived, and a member is blocked
  std::deque<open_operation> watched_;   ///< operations with deadlines, in the order of submission
  bool armed_ = false;
};

}  // namespace troupe::simulated
