// The `troupe` program: what belongs to the process is decided here, and here only.
#include "apps/troupe/process.hpp"
#include "apps/troupe/program.hpp"
#include "apps/troupe/torch_catalog.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/mpi/mpi.hpp"

#include <unistd.h>

#include <vector>

int main(int count, char** arguments) {
  using namespace troupe::program;
  keep_freed_memory();
  console screen{standard_output(), standard_error(), terminal_of_standard_error()};
  const auto learning = torch_catalog();
  // Manifests say which LibTorch wrote them. MPI can be started once in a process: one for all
  // calls.
  const auto world = [checkpoints = troupe::safetensors_checkpoints(learning->versions()),
                      mpi = std::make_shared<troupe::mpi_backend>(rank_by_mpirun())] {
    auto ports = troupe::local_ports();
    ports.checkpoints = checkpoints;
    ports.communicators.push_back(mpi);
    return ports;
  };
  const surroundings around{.screen = screen,
                            .learning = *learning,
                            .world = world,
                            .variables = troupe_variables(),
                            .wall = [] { return std::chrono::system_clock::now(); },
                            .age = process_age};
  const auto end = run_program({arguments + 1, arguments + count}, around);
  // A lane that is stuck in user code would be waited for by what is destroyed after main. All
  // output is written by now: none of it is buffered.
  if (end.survivors) ::_exit(end.code);
  return end.code;
}
