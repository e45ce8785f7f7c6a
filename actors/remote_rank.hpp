// The supervisor's proxy of a rank in another process.
#pragma once

#include "actors/supervisor.hpp"

namespace troupe {

/// Spawns proxies for the ranks of `what` as processes of this host. A proxy starts the rank's
/// process, sends the supervisor's orders over the link, and passes the rank's messages to
/// supervisor, checkpointer, observers and trace. It ends when the process has ended and is reaped:
/// without a failure after the rank was torn down, else with a failure (`signal`, `exit`,
/// `deadline`) that says what the rank was doing. If the proxy itself is ended, it kills the
/// process.
///
/// Until the rank's first message the proxy sends `rank_busy` whenever the process has made
/// progress. If the generation is closed before that message, the proxy answers for the rank and
/// kills the process, unless mpirun placed it.
///
/// Throws user_error: there is no usable launcher (bad_configuration), or no usable communicator
/// between processes with the wanted name (device).
spawn_rank_fn remote_ranks(const ports& world, const job& what);

}  // namespace troupe
