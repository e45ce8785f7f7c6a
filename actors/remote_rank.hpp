// A rank in a process of its own, as its supervisor sees it.
#pragma once

#include "actors/supervisor.hpp"

namespace troupe {

/// What brings the ranks of `what` near as processes of this host. The actor that stands for one
/// starts its process, hands orders to the link and what comes from it to supervisor, checkpointer,
/// observers and trace, and is down when the process is dead and reaped: in order after the rank
/// was torn down, else with a failure (`signal`, `exit`, `deadline`) that says what the rank was
/// doing. When it is ended itself, it kills the process.
///
/// Until the rank's first message it tells the supervisor (`rank_busy`) whenever the process has
/// made progress. If the generation is closed before that message, it answers for the rank and
/// kills the process; not one that mpirun has placed.
///
/// Throws user_error: no usable launcher (bad_configuration), no communicator that reaches from
/// process to process or not the one wanted (device).
spawn_rank_fn remote_ranks(const ports& world, const job& what);

}  // namespace troupe
