// Ranks of `bench collectives` as processes of this host.
#pragma once

#include "troupe/communicator.hpp"

#include <cstdint>
#include <functional>

namespace troupe::program {

/// Runs `body` on each of `ranks` ranks: rank 0 in this process, the others in copies of it, which
/// die with it. Returns when all are done; throws what rank 0 threw, or user_error if another rank
/// failed (it has said why on standard error). This process must have no other thread
/// (internal_error): a copy would lack them.
void on_processes(const rendezvous_kind& kind, const rendezvous_options& how, std::int32_t ranks,
                  const std::function<void(communicator&)>& body);

}  // namespace troupe::program
