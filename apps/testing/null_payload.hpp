// Ghosts as a payload of simulated runs: the production actors and machines of ten thousand ranks,
// with sizes and costs in place of weights.
//
// Oracles that apply: those of causes, steps, samples, commits, ends and leftovers. There is no
// state to be equal to a reference's.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/testing/job_run.hpp"
#include "apps/testing/payload.hpp"

namespace troupe::testing {

std::shared_ptr<payload> null_payload(std::uint64_t gradient_bytes = std::uint64_t{256} << 20,
                                      std::uint64_t bucket_bytes = std::uint64_t{256} << 20);

/// A job for so many ranks: one sample per rank and step, a checkpoint each hundred steps, and a
/// time knob as wide worlds have it (5 s), so that links beat as rarely as theirs.
job_spec null_payload_job(std::int32_t ranks, std::int64_t steps);
/// Its plan: ghosts whose gradients are so large, first come first served, and as many events as
/// the job may take.
run_plan null_payload_plan(const job_spec& what,
                           std::uint64_t gradient_bytes = std::uint64_t{256} << 20);

}  // namespace troupe::testing
