// Where ranks that are processes of one host meet: shared memory, TCP on loopback, both.
#pragma once

#include "troupe/rendezvous.hpp"

#include <memory>
#include <vector>

namespace troupe {

/// `shm`, `tcp`, `hier`: what `auto` takes first. What they need is inherited, nothing of it has a
/// name.
std::vector<std::shared_ptr<rendezvous_kind>> process_meetings();

/// Of ranks that something else has placed: `backend` (`mpi`) is in each of their processes
/// already, the same for all jobs.
std::shared_ptr<rendezvous_kind> placed_rendezvous(std::shared_ptr<communicator_backend> backend);

}  // namespace troupe
