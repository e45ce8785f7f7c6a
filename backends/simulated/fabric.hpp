// Collectives of simulated ranks, as macro events: an operation ends at its last arrival, or the
// end of the one before it, plus a cost, whatever the number of messages it would take. Completion
// is an event of each member's own life, so that a group may end while some have their result and
// others do not.
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

/// What a message costs over one kind of wire: alpha, and so much per byte.
struct wire_cost {
  std::chrono::nanoseconds alpha = std::chrono::microseconds{20};
  double nanoseconds_per_byte = 0.1;
};

/// Ranks 0 to per_host - 1 share a node, and so on: an operation goes on inside of all nodes, and
/// then between them, by one wire each. On each of the two levels all-reduce counts as a ring or a
/// tree, whatever is cheaper.
struct network_cost {
  wire_cost between;
  std::size_t per_host = 1;
  wire_cost inside{};  ///< of no account while a node is one rank
  std::chrono::nanoseconds of(const collective_call& call, std::size_t members) const;
};

/// When a member of an operation had come to it.
struct arrival {
  std::int32_t rank = 0;
  std::chrono::nanoseconds at{0};
};
/// Hears of each operation of all ranks, by rank, when the last one has come.
using met_fn = std::function<void(const collective_call& call, std::span<const arrival> who)>;

/// Where one life of a rank is attached. `later` is its own: what its host does not live to see
/// does not happen. `bell` is rung, from inside of what `later` calls, when an operation has ended
/// for it. `delay` is added to each of its completions, and is how long an abort takes to reach it;
/// empty: none.
struct fabric_endpoint {
  later_fn later;
  std::shared_ptr<lane_bell> bell;
  std::function<std::chrono::nanoseconds()> delay;
};

/// One network of one world. Bits follow the canonical reduction, memory is read when an operation
/// is submitted and written when it completes. A buffer of all_reduce or broadcast may have no
/// memory, on all ranks or on none: it costs the time of its size and moves nothing. `wait` on what
/// is pending throws `not_yet`. Not thread-safe: one world, one thread.
class simulated_fabric {
public:
  /// `later` and the virtual `now` are the world's: deadlines of operations.
  simulated_fabric(later_fn later, std::function<std::chrono::nanoseconds()> now,
                   network_cost cost = {}, met_fn met = {});
  ~simulated_fabric();

  /// The backend of one life of a rank.
  std::shared_ptr<communicator_backend> at(fabric_endpoint endpoint);

  /// The rank's host or process is dead: its handles change nothing any more, nobody is told.
  /// What everybody has arrived at still completes for the others.
  void vanish(const job_id& job, std::int32_t rank);
  /// Cut off, a rank's operations and aborts do not get through; healed, what is complete ends.
  void cut(std::int32_t rank, bool off);
  /// Handles that are open.
  std::size_t handles() const;

private:
  class network;
  std::shared_ptr<network> network_;
};

}  // namespace troupe
