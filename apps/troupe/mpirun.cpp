#include "apps/troupe/mpirun.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>

namespace troupe::program {

namespace {

// Run folders and configuration files contain "threads" because it is the default. So only a value
// that this call gives can contradict mpirun.
bool asked_now(const settings& s, std::string_view key) {
  const auto from = s.at(key).origin.from;
  return from != source::fallback && from != source::file;
}

[[noreturn]] void refuse(const settings& s, std::string_view key, std::string_view fix) {
  const auto& [value, from] = s.at(key);
  throw user_error(errc::bad_configuration,
                   fmt::format("{} = {} ({}): mpirun's processes are the ranks of one job, over "
                               "mpi; leave it out, or call troupe without mpirun{}",
                               key, toml_text(value), from.text(), fix));
}

}  // namespace

void take_place(settings& s, const std::optional<placed_rank>& place) {
  if (!place) return;
  if (s.text("placement") != "processes" && asked_now(s, "placement")) refuse(s, "placement", "");
  const auto by = s.text("communicator");
  if (by != "auto" && by != "mpi")
    refuse(s, "communicator", fmt::format(", with --placement processes for {}", by));
  if (s.is_given("ranks") && s.integer("ranks") != place->world)
    throw user_error(errc::bad_configuration,
                     fmt::format("ranks = {} ({}), but mpirun started {} processes, which are the "
                                 "ranks; call mpirun -n {}, or use --ranks {}",
                                 s.integer("ranks"), s.at("ranks").origin.text(), place->world,
                                 s.integer("ranks"), place->world));
  const origin from{source::flag, "mpirun -n"};
  if (const auto wrong = s.set("ranks", std::int64_t{place->world}, from))
    throw user_error(errc::bad_configuration, wrong->text);
}

void take_place(job& what, const std::optional<placed_rank>& place) {
  if (!place) return;
  what.options.placement = placement_kind::processes;
  what.options.communicator = communicator_kind::mpi;
}

cluster_environment_ptr place_of_rank(const std::optional<placed_rank>& place,
                                      const cluster_facts& from, std::int32_t rank,
                                      std::int32_t world) {
  if (place) {
    try {
      if (auto found = mpi_environment(from); found->rank() == rank && found->world() == world)
        return found;
    } catch (const user_error&) {  // rank and world are known; only the host is not
    }
  }
  return std::make_shared<local_environment>(rank, world);
}

// Slurm's variables are also set in a batch script, which runs once: only a step has several tasks.
void refuse_copies(const cluster_facts& from, const std::optional<placed_rank>& place) {
  if (place || !from.variable) return;
  const auto found = detect_environment(from).which;
  if (!found || found->world() == 1 || found->name() == "mpi") return;
  const auto tasks = from.variable("SLURM_STEP_NUM_TASKS");
  if (found->name() == "slurm" && (!tasks || *tasks == "1")) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("{0} has started {1} processes of troupe, and each would run the "
                               "whole job: start it once, with --ranks {1} --placement processes, "
                               "or with mpirun -n {1}",
                               found->name(), found->world()));
}

std::string place_note(const placed_rank& place) {
  return fmt::format("mpirun started {} processes: they are the ranks, over mpi", place.world);
}

}  // namespace troupe::program
