// What a rank brings to one collective operation.
#pragma once

#include "backends/collective/collective_call.hpp"

namespace troupe::collectives {

/// The fingerprint, the rank's memory and its vote. The memory belongs to the operation until it is
/// quiescent.
struct submission {
  collective_call call;
  const void* in = nullptr;  ///< all_reduce and broadcast: the same as `out`
  void* out = nullptr;
  /// Memory of devices only: the points after which it may be used.
  device_event_ptr in_ready, out_ready;
  bool yes = false;                ///< decide only: this rank's vote
  communicator::shared_body body;  ///< work_together only
};

/// Operations of a (sub)group that a rank may have in flight. Training has the buckets of one step.
inline constexpr std::uint64_t operations_max = 4096;
/// How far the operations of other ranks may be ahead of this rank's oldest one. This rank has
/// submitted operations_max from that one on, and the others may have completed all of those.
inline constexpr std::uint64_t ahead_max = 2 * operations_max;
/// Throws user_error (bad_usage) if `in_flight` operations are as many as there may be. `operation`
/// says what the next one is.
void check_in_flight(std::string_view operation, std::uint64_t in_flight);
inline void check_in_flight(const collective_call& next, std::uint64_t in_flight) {
  if (in_flight >= operations_max) check_in_flight(describe(next), in_flight);
}

/// `generation 3 of job 1`.
std::string generation_text(const group_description& who);
/// Throws std::invalid_argument unless the rank lies in its world.
void check_rank(const group_description& who);

/// `rank 1 closed its communicator while barrier "x" was in flight`.
std::string closed_in_flight(std::int32_t rank, std::string_view operation);
/// `barrier "x" cannot be met: rank 1 has closed its communicator`.
std::string closed_before(const collective_call& call, std::int32_t rank);

}  // namespace troupe::collectives
