// The `troupe` program: what belongs to the process is decided here, and here only.
#include "actors/rank_process.hpp"
#include "apps/troupe/process.hpp"
#include "apps/troupe/program.hpp"
#include "apps/troupe/recipe_text.hpp"
#include "apps/troupe/torch_catalog.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/mpi/mpi.hpp"
#include "backends/nccl/nccl.hpp"

#include <unistd.h>

#include <vector>

int main(int count, char** arguments) {
  using namespace troupe::program;
  keep_freed_memory();
  const auto learning = torch_catalog();
  // Manifests say which LibTorch wrote them. MPI can be started once in a process: one for all
  // calls.
  const auto world =
      [checkpoints = troupe::safetensors_checkpoints(learning->versions()),
       mpi = std::make_shared<troupe::mpi_backend>(rank_by_mpirun()),
       nccl = std::make_shared<troupe::nccl_backend>(std::make_shared<troupe::inproc_backend>())] {
        auto ports = troupe::local_ports();
        ports.checkpoints = checkpoints;
        ports.communicators.push_back(nccl);
        ports.communicators.push_back(mpi);
        return ports;
      };
  const auto recipe = [&learning](const std::string& text) {
    return learning->recipe(read_recipe_text(text));
  };
  // A rank's process, of --placement processes: nothing to be tidied up behind its rank.
  if (const auto code = troupe::run_rank_if_child(count, arguments, {recipe, world}))
    ::_exit(*code);
  console screen{standard_output(), standard_error(), terminal_of_standard_error()};
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
