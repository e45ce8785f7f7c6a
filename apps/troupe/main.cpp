// The `troupe` program. Only this file decides what affects the whole process.
#include "actors/rank_process.hpp"
#include "apps/troupe/mpirun.hpp"
#include "apps/troupe/process.hpp"
#include "apps/troupe/program.hpp"
#include "apps/troupe/recipe_text.hpp"
#include "apps/troupe/torch_catalog.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/mpi/mpi.hpp"
#include "backends/processes/rendezvous_kinds.hpp"

#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

// Runs this process as a rank of a job under mpirun.
int be_placed(troupe::mpi_backend& mpi, const std::string& join_info,
              const troupe::rank_process_options& home) {
  const auto join_text = mpi.share(join_info);
  const auto code = troupe::run_placed_rank(mpi.placed()->rank, join_text, home);
  if (code == 0) mpi.close();
  return code;
}

}  // namespace

int main(int count, char** arguments) {
  using namespace troupe::program;
  // MPI can be started once in a process: one backend for all calls. Where mpirun started several
  // processes, they are the ranks: the first one brings up the others, and a child for rank 0.
  const auto mpi = std::make_shared<troupe::mpi_backend>(rank_by_mpirun());
  const auto place = mpi->placed() && mpi->placed()->world > 1 ? mpi->placed() : std::nullopt;
  const auto learning = torch_catalog([place](const troupe::learner_context& about) {
    return place_of_rank(place, cluster_facts_of_process(), about.rank, about.world);
  });
  const auto placed_ranks =
      place ? troupe::placed_launcher({.world = place->world, .one_host = mpirun_on_one_host()})
            : nullptr;
  // Manifests say which LibTorch wrote them.
  const auto world = [checkpoints = troupe::safetensors_checkpoints(learning->versions()), mpi,
                      placed_ranks] {
    auto ports = troupe::local_ports();
    ports.checkpoints = checkpoints;
    ports.use(mpi);
    if (placed_ranks) {
      ports.children = placed_ranks;
      ports.use(troupe::placed_rendezvous(mpi));
    }
    return ports;
  };
  const auto recipe = [&learning](const std::string& text) {
    return learning->recipe(read_recipe_text(text));
  };
  // A rank's process, of --placement processes: it ends with its rank, without destructors.
  if (const auto code = troupe::run_rank_if_child(count, arguments, {recipe, world}))
    ::_exit(*code);
  if (const auto join_info = troupe::placed_child(count, arguments))
    ::_exit(be_placed(*mpi, *join_info, {recipe, world}));
  console screen{standard_output(), standard_error(), terminal_of_standard_error()};
  const context around{.screen = screen,
                       .learning = *learning,
                       .world = world,
                       .variables = troupe_variables(),
                       .wall = [] { return std::chrono::system_clock::now(); },
                       .age = process_age,
                       .place = place,
                       .cluster = cluster_facts_of_process(),
                       .be_rank = [&]() -> program_end {
                         // If MPI is unusable, only process 0 reports it.
                         if (!mpi->unusable().empty()) return {};
                         return {be_placed(*mpi, {}, {recipe, world}), true};
                       }};
  const auto end = run_program({arguments + 1, arguments + count}, around);
  // Destructors after main would wait for a lane that is stuck in user code. All output is already
  // written: none of it is buffered.
  if (end.survivors) ::_exit(end.code);
  return end.code;
}
