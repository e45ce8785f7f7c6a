// A program as its main calls it. Only this file decides what affects the whole process.
#include "actors/rank_process.hpp"
#include "apps/troupe/mpirun.hpp"
#include "apps/troupe/process.hpp"
#include "apps/troupe/program.hpp"
#include "apps/troupe/recipe_text.hpp"
#include "apps/troupe/torch_catalog.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/mpi/mpi.hpp"
#include "backends/processes/rendezvous_kinds.hpp"
#include "troupe/failure.hpp"
#include "troupe/main.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

namespace {

// Runs this process as a rank of a job under mpirun.
int be_placed(mpi_backend& mpi, const std::string& join_info, const rank_process_options& home) {
  const auto join_text = mpi.share(join_info);
  const auto code = run_placed_rank(mpi.placed()->rank, join_text, home);
  if (code == 0) mpi.close();
  return code;
}

// What users call the program.
std::string name_of(const application::facts& about, int count, const char* const* arguments) {
  if (!about.name.empty()) return about.name;
  const auto file = std::filesystem::path{count > 0 ? arguments[0] : ""}.filename().string();
  return file.empty() ? "program" : file;
}

int run_parts(const application::facts& about, const detail::own_parts& parts, int count,
              const char* const* arguments, program::console& screen) {
  using namespace troupe::program;
  // MPI can be started once in a process: one backend for all calls. Where mpirun started several
  // processes, they are the ranks: the first one brings up the others, and a child for rank 0.
  const auto mpi = std::make_shared<mpi_backend>(rank_by_mpirun());
  const auto place = mpi->placed() && mpi->placed()->world > 1 ? mpi->placed() : std::nullopt;
  const auto learning = torch_catalog(parts, [place](const learner_context& of) {
    return place_of_rank(place, cluster_facts_of_process(), of.rank, of.world);
  });
  const auto placed_ranks =
      place ? placed_launcher({.world = place->world, .one_host = mpirun_on_one_host()}) : nullptr;
  // Manifests say which LibTorch wrote them.
  const auto world = [checkpoints = safetensors_checkpoints(learning->versions()), mpi,
                      placed_ranks] {
    auto ports = local_ports();
    ports.checkpoints = checkpoints;
    ports.use(mpi);
    if (placed_ranks) {
      ports.children = placed_ranks;
      ports.use(placed_rendezvous(mpi));
    }
    return ports;
  };
  const auto recipe = [&learning](const std::string& text) {
    return learning->recipe(read_recipe_text(text));
  };
  // A rank's process, of --placement processes: it ends with its rank, without destructors.
  if (const auto code = run_rank_if_child(count, arguments, {recipe, world})) ::_exit(*code);
  if (const auto join_info = placed_child(count, arguments))
    ::_exit(be_placed(*mpi, *join_info, {recipe, world}));
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
                       },
                       .name = name_of(about, count, arguments),
                       .about = about.about,
                       .version = about.version};
  const auto end = run_program({arguments + std::min(1, count), arguments + count}, around);
  // Destructors after main would wait for a lane that is stuck in user code. All output is already
  // written: none of it is buffered.
  if (end.survivors) ::_exit(end.code);
  return end.code;
}

}  // namespace

application& application::model(std::string name, std::string summary,
                                std::function<std::shared_ptr<module>()> make) {
  std::function<std::shared_ptr<module>(const value_map&)> of_settings;
  if (make) of_settings = [make = std::move(make)](const value_map&) { return make(); };
  parts_.models.push_back({std::move(name), std::move(summary), {}, std::move(of_settings)});
  return *this;
}

application& application::data(std::string name, std::string summary,
                               std::function<std::shared_ptr<data_module>()> make) {
  std::function<std::shared_ptr<data_module>(const value_map&)> of_settings;
  if (make) of_settings = [make = std::move(make)](const value_map&) { return make(); };
  parts_.data.push_back({std::move(name), std::move(summary), {}, std::move(of_settings)});
  return *this;
}

application& application::plugins(std::function<void(torch_plugins&)> change) {
  parts_.change_plugins = std::move(change);
  return *this;
}

int application::run(int count, const char* const* arguments) const {
  program::console screen{program::standard_output(), program::standard_error(),
                          program::terminal_of_standard_error()};
  try {
    return run_parts(about_, parts_, count, arguments, screen);
  } catch (const user_error& error) {  // the parts have impossible names
    screen.error(error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace troupe
