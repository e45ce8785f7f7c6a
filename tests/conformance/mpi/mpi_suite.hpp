// Helpers of the communicator conformance suite over MPI. Every process of mpirun runs all cases in
// the same order, as the rank that mpirun assigned to it. Each case opens its own generations.
#pragma once

#include "backends/mpi/mpi.hpp"
#include "tests/conformance/port_cases.hpp"
#include "tests/support/thrown.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe::testing {

placed_rank place();
extern const std::int32_t rank;
extern const std::int32_t world;
mpi_backend& backend();

/// All processes must call this equally often.
std::shared_ptr<communicator> next_generation(
    std::chrono::nanoseconds deadline = std::chrono::seconds{60});

}  // namespace troupe::testing
