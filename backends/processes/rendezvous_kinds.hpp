// The rendezvous of ranks that are processes of one host: shared memory, TCP on loopback, or both.
#pragma once

#include "backends/processes/launcher_store.hpp"
#include "troupe/communicator.hpp"

#include <memory>
#include <vector>

namespace troupe {

/// `shm`, `tcp`, `hier`, in the order of `auto`. Processes inherit all descriptors; nothing has a
/// name in the file system.
std::vector<std::shared_ptr<rendezvous_kind>> process_rendezvous_kinds();

/// The rendezvous of ranks that mpirun placed: each process has `backend` (`mpi`) already, for all
/// jobs.
std::shared_ptr<rendezvous_kind> placed_rendezvous(std::shared_ptr<communicator_backend> backend);

/// `shm` for placed ranks (torchrun, Slurm) that are all on this host. The process that runs the
/// job holds the shared memory and sends it to the others, which know it by a random name.
std::shared_ptr<rendezvous_kind> named_shm_rendezvous();

/// `tcp` for placed ranks (torchrun, Slurm), which find each other's addresses in `store`. With
/// `one_host` they listen on loopback only; else each publishes the address by which it sends to
/// the store's host.
std::shared_ptr<rendezvous_kind> stored_rendezvous(std::shared_ptr<launcher_store> store,
                                                   bool one_host);

/// `hier` for placed ranks: as `tcp`, and ranks that find each other on one host share memory.
std::shared_ptr<rendezvous_kind> stored_hier_rendezvous(
    const std::shared_ptr<launcher_store>& store, bool one_host);

}  // namespace troupe
