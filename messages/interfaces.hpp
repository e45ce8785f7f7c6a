// The map of all actors: which exist, and which messages each one receives. No other file declares
// a handle type. All messages are one-way: no actor replies, so a request() would only time out.
#pragma once

#include <caf/config.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "messages/control.hpp"
#include "messages/type_ids.hpp"

// The two files that name what differs between CAF 0.17, which distributions ship and CI compiles,
// and CAF 1.x: this one and actors/spawn.hpp.
namespace troupe::seam {

#if CAF_MAJOR_VERSION == 0 && CAF_MINOR_VERSION == 17
template <class Signature>
struct signature;
template <class R, class... A>
struct signature<R(A...)> {
  using type = typename caf::replies_to<A...>::template with<R>;
};
template <class... A>
struct signature<void(A...)> {
  using type = caf::reacts_to<A...>;
};
#else
#error \
    "Troupe supports CAF 0.17 (libcaf-dev): messages/interfaces.hpp needs a branch for this version"
#endif

/// A typed actor handle: one function type per message that the actor handles, at most about 15.
template <class... Signatures>
using interface = caf::typed_actor<typename signature<Signatures>::type...>;

}  // namespace troupe::seam

namespace troupe {

/// RANK. One member of the job: owns a fit machine and a lane, and never blocks.
using rank_actor = seam::interface<void(form_generation),      // from the supervisor
                                   void(activate_generation),  // from the supervisor
                                   void(propose_stop),         // from the supervisor
                                   void(stop_at),              // from the supervisor
                                   void(close_generation),     // from the supervisor
                                   void(tear_down),            // from the supervisor
                                   void(lane_answered),        // from its own lane
                                   void(lane_closed),          // from its own lane
                                   void(tick)>;                // to itself

/// REMOTE RANK. The proxy of a rank in another process; the supervisor uses it like the rank
/// itself.
using remote_rank_actor =
    seam::interface<void(form_generation), void(activate_generation), void(propose_stop),
                    void(stop_at), void(close_generation), void(tear_down), void(lane_answered),
                    void(lane_closed), void(tick),  // as above
                    void(far_ended),                // from the link
                    void(process_gone)>;            // from the launcher

/// SUPERVISOR. Starts ranks, forms the generation, records the first cause and ends the run. One
/// per job.
using supervisor_actor = seam::interface<void(begin_job),          // from the session
                                         void(prepared),           // from a rank
                                         void(step_done),          // from a rank
                                         void(stop_vote),          // from a rank
                                         void(rank_finished),      // from a rank
                                         void(rank_failed),        // from a rank or its proxy
                                         void(queue_value),        // from rank 0
                                         void(closed_generation),  // from a rank
                                         void(rank_busy),          // from a rank
                                         void(torn_down),          // from a rank
                                         void(checkpoint_report),  // from the checkpointer
                                         void(flushed),           // from checkpointer and observers
                                         void(process_changed),   // from the launcher
                                         void(caller_request),    // from the caller
                                         void(deadline_passed)>;  // to itself

/// CHECKPOINTER. Writes snapshots through the storage port, one at a time. One per job.
using checkpointer_actor = seam::interface<void(write_checkpoint),  // from rank 0
                                           void(step_committed),    // from the supervisor
                                           void(storage_answered),  // from the storage port
                                           void(flush)>;            // from the supervisor

/// OBSERVER. Calls one observer with what its bounded queue holds. One per observer and job.
using observer_actor =
    seam::interface<void(tick),    // from ranks and supervisor: the queue has items
                    void(flush)>;  // from the supervisor

}  // namespace troupe
