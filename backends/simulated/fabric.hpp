// Collectives of simulated ranks at the macro level: an operation ends at its last arrival or at
// the end of the previous one, plus a cost, whatever the number of messages. Each member completes
// by its own event, so a group may end while some members have their result and others do not.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backends/collective/collective_call.hpp"
#include "backends/simulated/lane_bell.hpp"
#include "backends/simulated/later.hpp"
#include "troupe/communicator.hpp"

namespace troupe {

/// Cost of a message over one kind of wire: latency alpha, and a time per byte.
struct wire_cost {
  std::chrono::nanoseconds alpha = std::chrono::microseconds{20};
  double nanoseconds_per_byte = 0.1;
};

/// Ranks 0 to per_host - 1 share a host, and so on. An operation runs within all hosts, and then
/// between them over one wire each. On each level all-reduce costs the cheaper of a ring and a
/// tree.
struct network_cost {
  wire_cost between;
  std::size_t per_host = 1;
  wire_cost inside{};  ///< unused while each host has one rank
  std::chrono::nanoseconds of(const collective_call& call, std::size_t members) const;
};

/// When a member arrived at an operation.
struct arrival {
  std::int32_t rank = 0;
  std::chrono::nanoseconds at{0};
};
/// Called for each operation of all ranks after its last arrival, with the arrivals by rank.
using met_fn = std::function<void(const collective_call& call, std::span<const arrival> who)>;

/// Attaches one incarnation of a rank. `later` belongs to its node: events after the node's death
/// do not happen. `bell` is rung, within an event of `later`, when an operation has ended for the
/// rank. `delay` is added to each of its completions and is the time after which an abort reaches
/// it; empty: none. `process` names the node for `simulated_fabric::vanish`. `opened` is called
/// with each generation that the incarnation enters; it may be empty.
struct fabric_endpoint {
  later_fn later;
  std::shared_ptr<lane_bell> bell;
  std::function<std::chrono::nanoseconds()> delay;
  std::uint32_t process = 0;
  std::function<void(const group_description& who)> opened = {};
};

/// The network of one simulation. Bits follow the canonical reduction; memory is read at submission
/// and written at completion. A buffer of all_reduce or broadcast may have no memory on all ranks:
/// it costs the time of its size and moves nothing. `wait` throws `not_yet` while an operation is
/// pending. Each generation of a job is a group of its own: what is in flight in an older one
/// reaches only its own members. Not thread-safe: one simulation, one thread.
class simulated_fabric {
public:
  /// `later` and `now` belong to the simulation; they serve the deadlines of operations.
  simulated_fabric(later_fn later, std::function<std::chrono::nanoseconds()> now,
                   network_cost cost = {}, met_fn met = {});
  ~simulated_fabric();

  /// The backend of one incarnation of a rank.
  std::shared_ptr<communicator_backend> at(fabric_endpoint endpoint);

  /// The process is dead: its handles in all generations have no effect any more, and no peer is
  /// notified. Operations at which all members have arrived still complete for the others.
  void vanish(std::uint32_t process);
  /// Blocks a rank's operations and aborts (`off`), or unblocks them: then complete operations end.
  void cut(std::int32_t rank, bool off);
  /// Number of open handles.
  std::size_t handles() const;

private:
  class network;
  std::shared_ptr<network> network_;
};

}  // namespace troupe
