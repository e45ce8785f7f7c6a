// What the cases of the communicator port over MPI are made of. Every process of mpirun runs all
// of them in the same order, as the rank that mpirun made it; each opens generations of its own.
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

/// All processes call it as often as each other.
std::shared_ptr<communicator> next_generation(
    std::chrono::nanoseconds deadline = std::chrono::seconds{60});

}  // namespace troupe::testing
