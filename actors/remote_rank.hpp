// The supervisor's proxy of a rank in another process.
#pragma once

#include "actors/supervisor.hpp"

namespace troupe {

/// Spawns proxies for ranks that live in `processes` (rank_setup::process, which is started). A
/// proxy sends the supervisor's orders over the link of the process, and passes the rank's messages
/// to supervisor, checkpointer, observers and trace. It ends when the rank has ended and its
/// process goes on with others, or when the process has ended: without a failure after the rank was
/// torn down, else with a failure (`signal`, `exit`, `deadline`) that says what the rank was doing.
/// If the proxy itself is ended, it kills the process.
///
/// Until the rank's first message the proxy sends `rank_busy` whenever the process has made
/// progress, `overdue` after hook_limit. If the generation is closed before that message, the proxy
/// answers for the rank, unless the generation did not form in time. It kills the process if the
/// job ends, unless a launcher such as mpirun placed it.
///
/// From an order to close or to end on it sends `rank_busy` while a snapshot is arriving from the
/// process, because the rank's answer comes after it.
spawn_rank_fn remote_ranks(std::shared_ptr<job_processes> processes);

}  // namespace troupe
