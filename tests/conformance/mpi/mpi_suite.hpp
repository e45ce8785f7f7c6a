// What the cases of the communicator port over MPI are made of. Every process of mpirun runs all
// of them in the same order, as the rank that mpirun made it; each opens generations of its own.
#pragma once

#include "backends/mpi/mpi.hpp"
#include "tests/conformance/port_cases.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
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

/// The text of an exception of type E.
template <class E>
std::string thrown_by(const std::function<void()>& what) {
  try {
    what();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string{"(another exception: "} + e.what() + ")";
  }
  return "(nothing was thrown)";
}

}  // namespace troupe::testing
