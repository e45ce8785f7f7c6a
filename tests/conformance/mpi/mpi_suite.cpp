#include "tests/conformance/mpi/mpi_suite.hpp"

#include <cstdlib>

namespace troupe::testing {

placed_rank place() {
  const auto number = [](const char* name) {
    const auto* text = std::getenv(name);
    return text ? std::atoi(text) : -1;
  };
  return {number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_SIZE")};
}
const std::int32_t rank = place().rank;
const std::int32_t world = place().world;

mpi_backend& backend() {
  static mpi_backend one{place()};
  return one;
}

std::shared_ptr<communicator> next_generation(std::chrono::nanoseconds deadline) {
  static std::uint64_t generation = 0;
  return backend().open({.job = job_id{7},
                         .generation = generation_id{++generation},
                         .rank = rank,
                         .world = world,
                         .deadline = deadline});
}

}  // namespace troupe::testing
