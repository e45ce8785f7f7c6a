// The null payload of simulated runs: sizes and costs in place of weights, for the production
// actors and machines of ten thousand ranks.
//
// The oracles of causes, steps, samples, commits, ends and leftovers apply. No oracle compares
// states, because there are none.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/testing/job_run.hpp"
#include "apps/testing/payload.hpp"

namespace troupe::testing {

/// A case names it `none`, or `own_none` with other sizes than the defaults: then only the test
/// that supplies them can replay the case.
std::shared_ptr<payload> null_payload(std::uint64_t gradient_bytes = std::uint64_t{256} << 20,
                                      std::uint64_t bucket_bytes = std::uint64_t{256} << 20);

/// A job with `ranks` ranks: one sample per rank and step, a checkpoint every hundred steps, and
/// failure detection within 5 s, so that heartbeats are as rare as in a job of that width.
job_spec null_payload_job(std::int32_t ranks, std::int64_t steps);
/// A plan for the job: gradients of the given size, fifo schedule, and as many events as the job
/// may take.
run_plan null_payload_plan(const job_spec& what,
                           std::uint64_t gradient_bytes = std::uint64_t{256} << 20);

}  // namespace troupe::testing
