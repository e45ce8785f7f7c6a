#include "apps/troupe/launched.hpp"

#include "backends/shm/shm.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace troupe::program {

namespace {

std::string text_of(const cluster_facts& from, const char* name) {
  return from.variable ? from.variable(name).value_or("") : "";
}

std::optional<std::int32_t> number_of(const cluster_facts& from, const char* name) {
  const auto text = text_of(from, name);
  std::int32_t number = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && rest == end ? std::optional{number} : std::nullopt;
}

// A batch script of Slurm runs once, with the variables of a step; only a step has several tasks.
bool runs_once(const cluster_facts& from, const cluster_environment& found) {
  if (found.world() == 1) return true;
  return found.name() == "slurm" && number_of(from, "SLURM_STEP_NUM_TASKS").value_or(1) == 1;
}

launched by_torchrun(const cluster_facts& from, const cluster_environment& found) {
  launched by{.place = {found.rank(), found.world()},
              .by = "torchrun",
              .count = "--nproc-per-node",
              .over = communicator_kind::tcp};
  by.per_host = number_of(from, "LOCAL_WORLD_SIZE").value_or(0);
  by.store_is_served = text_of(from, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  // torchrun may start all processes again, with the same store.
  by.store_prefix = fmt::format("troupe {} {} ", text_of(from, "TORCHELASTIC_RUN_ID"),
                                text_of(from, "TORCHELASTIC_RESTART_COUNT"));
  return by;
}

// Slurm numbers its tasks in blocks of equally many per host, and the last hosts have one fewer.
void count_hosts(launched& by, const cluster_facts& from) {
  auto hosts = number_of(from, "SLURM_STEP_NUM_NODES");
  if (!hosts) hosts = number_of(from, "SLURM_NNODES");
  by.hosts = std::max(hosts.value_or(0), 0);
  by.per_host = by.hosts > 0 ? (by.place.world + by.hosts - 1) / by.hosts : 0;
}

launched by_srun(const cluster_facts& from, const cluster_environment& found) {
  launched by{.place = {found.rank(), found.world()},
              .by = "srun",
              .count = "-n",
              .over = communicator_kind::tcp};
  count_hosts(by, from);
  by.store_prefix =
      fmt::format("troupe {} {} ", text_of(from, "SLURM_JOB_ID"), text_of(from, "SLURM_STEP_ID"));
  return by;
}

launched by_jsrun(const cluster_facts& from, const cluster_environment& found) {
  return {.place = {found.rank(), found.world()},
          .by = "jsrun",
          .count = "-n",
          .over = communicator_kind::tcp,
          .store_prefix = fmt::format("troupe {} {} ", text_of(from, "LSB_JOBID"),
                                      text_of(from, "PMIX_NAMESPACE"))};
}

// The variables of PMI are those of srun --mpi=pmi2. An mpirun whose helpers srun has started sets
// them, too: its helpers are one per host, and it counts the ranks of each host.
bool is_pmi_of_srun(const cluster_facts& from, const placed_rank& place) {
  return number_of(from, "SLURM_STEP_NUM_TASKS") == place.world &&
         number_of(from, "SLURM_PROCID") == place.rank && !number_of(from, "MPI_LOCALNRANKS");
}

bool is_srun_over_mpi(const launched& by) {
  return by.by == "srun" && by.over == communicator_kind::mpi;
}

// Run folders and configuration files contain "threads" because it is the default. So only a value
// that this call gives can contradict the launcher.
bool asked_now(const settings& s, std::string_view key) {
  const auto from = s.at(key).origin.from;
  return from != source::fallback && from != source::file;
}

[[noreturn]] void refuse(const settings& s, std::string_view key, const launched& by,
                         std::string_view fix) {
  const auto& [value, from] = s.at(key);
  throw user_error(errc::bad_configuration,
                   fmt::format("{0} = {1} ({2}): {3}'s processes are the ranks of one job, over "
                               "{4}; leave it out, or call the program without {3}{5}",
                               key, toml_text(value), from.text(), by.by, to_string(by.over), fix));
}

// How a call without this launcher gets the communicator.
std::string way_to(const std::string& communicator, const launched& by) {
  if (communicator == to_string(communicator_kind::mpi)) return ", with mpirun";
  const bool threads = communicator == to_string(communicator_kind::inproc) ||
                       communicator == to_string(communicator_kind::nccl);
  return fmt::format(", with --placement {} for {}{}", threads ? "threads" : "processes",
                     communicator,
                     is_srun_over_mpi(by) && !threads ? "; or call srun --mpi=none" : "");
}

[[noreturn]] void refuse_number(const settings& s, const launched& by, std::int64_t ranks,
                                std::int64_t spares) {
  const auto world = by.place.world;
  if (spares > 0)
    throw user_error(
        errc::bad_configuration,
        fmt::format("{0} started {1} processes, which are the ranks and the spares: with "
                    "elastic.spares = {2} ({3}) and ranks = {4} call {0} {5} {6}",
                    by.by, world, spares, s.at("elastic.spares").origin.text(),
                    std::max<std::int64_t>(ranks, 1), by.count,
                    std::max<std::int64_t>(ranks, 1) + spares));
  throw user_error(errc::bad_configuration,
                   fmt::format("ranks = {0} ({1}), but {2} started {3} processes, which are the "
                               "ranks; call {2} {4} {0}, or use --ranks {3}",
                               ranks, s.at("ranks").origin.text(), by.by, world, by.count));
}

// Shared memory does not carry as many ranks as a job may have shards.
communicator_kind carrier(const launched& by, std::int64_t shards) {
  return by.over == communicator_kind::shm && shards > shm_backend::ranks_max
             ? communicator_kind::tcp
             : by.over;
}

// A rank in a launcher's process of which it is not the only one, or not the first.
class shared_place : public local_environment {
public:
  shared_place(std::int32_t rank, std::int32_t world, std::int32_t local_rank,
               std::int32_t local_world)
      : local_environment(rank, world), local_rank_(local_rank), local_world_(local_world) {}
  std::int32_t local_rank() const override { return local_rank_; }
  std::int32_t local_world() const override { return local_world_; }

private:
  const std::int32_t local_rank_;
  const std::int32_t local_world_;
};

// Of the ranks that begin on one host, the first one prepares its data: so a rank is numbered there
// as if the hosts had their processes in blocks, and each process a run of equally many ranks or
// one more (placements::begin).
cluster_environment_ptr shared(const launched& by, std::int32_t rank, std::int32_t world,
                               std::int32_t spares) {
  const auto per_host = by.per_host > 0 ? by.per_host : by.place.world;
  const auto larger = by.hosts > 0 ? by.place.world - by.hosts * (per_host - 1) : by.place.world;
  const auto processes = std::min(by.place.world - spares, world);
  const auto first_of = [&](std::int32_t process) {
    return process * (world / processes) + std::min(process, world % processes);
  };
  std::int32_t first = 0;
  std::int32_t end = 0;
  for (std::int32_t host = 0, process = 0; end <= rank; ++host) {
    process += host < larger ? per_host : per_host - 1;
    first = std::exchange(end, first_of(std::min(process, processes)));
  }
  return std::make_shared<shared_place>(rank, world, rank - first, end - first);
}

cluster_environment_ptr detected(const cluster_facts& from) {
  try {
    return detect_environment(from).which;
  } catch (const user_error&) {
    return nullptr;
  }
}

}  // namespace

std::optional<launched> by_mpirun(const cluster_facts& from) {
  constexpr std::array<std::array<const char*, 2>, 2> known{
      {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}}};
  // torchrun may be started by mpirun, or where something else has set variables of PMI.
  if (from.variable && from.variable("TORCHELASTIC_RUN_ID")) return std::nullopt;
  const auto here = number_of(from, "OMPI_COMM_WORLD_LOCAL_SIZE");
  for (const auto& [rank, world] : known) {
    const auto own = number_of(from, rank);
    const auto all = number_of(from, world);
    if (!own || !all || *own < 0 || *own >= *all) continue;
    launched by{.place = {*own, *all}, .by = "mpirun", .count = "-n"};
    by.per_host = (here ? here : number_of(from, "MPI_LOCALNRANKS")).value_or(0);
    by.pmi_descriptor = number_of(from, "PMI_FD");
    if (rank == std::string_view{"PMI_RANK"} && is_pmi_of_srun(from, by.place)) {
      by.by = "srun";
      count_hosts(by, from);
    }
    return by;
  }
  return std::nullopt;
}

std::optional<launched> launched_by(const cluster_facts& from, bool with_mpi) {
  if (!from.variable) return std::nullopt;
  if (auto by = by_mpirun(from); by && (with_mpi || by->by == "mpirun"))
    return by->place.world > 1 ? std::move(by) : std::nullopt;
  const auto found = detected(from);
  if (!found || runs_once(from, *found)) return std::nullopt;
  std::optional<launched> by;
  if (found->name() == "torchelastic") by = by_torchrun(from, *found);
  if (found->name() == "slurm") by = by_srun(from, *found);
  if (found->name() == "lsf") by = by_jsrun(from, *found);
  if (!by) return std::nullopt;
  if (by->one_host() && by->place.world <= shm_backend::ranks_max && shm_unusable().empty())
    by->over = communicator_kind::shm;
  by->store_host = found->main_address();
  by->store_port = found->main_port().value_or(0);
  return by;
}

void take_place(settings& s, const std::optional<launched>& by) {
  if (!by) return;
  if (s.text("placement") != "processes" && asked_now(s, "placement"))
    refuse(s, "placement", *by, "");
  const auto wanted = s.text("communicator");
  const bool over_store =
      by->over != communicator_kind::mpi &&
      (wanted == to_string(communicator_kind::tcp) || wanted == to_string(communicator_kind::hier));
  if (wanted != "auto" && wanted != to_string(by->over) && !over_store)
    refuse(s, "communicator", *by, way_to(wanted, *by));
  const auto world = by->place.world;
  const auto spares = s.integer("elastic.spares");
  const auto ranks = s.is_given("ranks") ? s.integer("ranks") : world - spares;
  if (ranks + spares != world || ranks < 1) refuse_number(s, *by, ranks, spares);
  const origin from{source::flag, fmt::format("{} {}", by->by, by->count)};
  if (const auto wrong = s.set("ranks", std::int64_t{ranks}, from))
    throw user_error(errc::bad_configuration, wrong->text);
}

void take_place(job& what, const std::optional<launched>& by) {
  if (!by) return;
  what.options.placement = placement_kind::processes;
  if (what.options.communicator.name == to_string(communicator_kind::automatic))
    what.options.communicator = carrier(*by, what.options.elastic.shards.value_or(0));
}

cluster_environment_ptr place_of_rank(const std::optional<launched>& by, const cluster_facts& from,
                                      std::int32_t rank, std::int32_t world, std::int32_t spares) {
  if (by) {
    try {
      const auto found =
          by->by == "mpirun" ? mpi_environment(from) : detect_environment(from).which;
      if (found && found->rank() == rank && found->world() == world && spares == 0) return found;
    } catch (const user_error&) {  // rank and world are known; only the host is not
    }
    return shared(*by, rank, world, spares);
  }
  return std::make_shared<local_environment>(rank, world);
}

void refuse_copies(const cluster_facts& from, const std::optional<launched>& by) {
  if (by || !from.variable) return;
  const auto found = detect_environment(from).which;
  if (!found || runs_once(from, *found) || found->name() == "mpi") return;
  throw user_error(
      errc::bad_configuration,
      fmt::format("{0} has started {1} copies of this program, and each would run the whole job: "
                  "start it once, with --ranks {1} --placement processes, or with mpirun -n {1}",
                  found->name(), found->world()));
}

std::string place_note(const launched& by, const settings& s) {
  const auto spares = s.integer("elastic.spares");
  const auto wanted = s.text("communicator");
  const auto shards = s.find<std::int64_t>("elastic.shards").value_or(0);
  return fmt::format("{} started {} processes: they are the ranks{}, over {}{}", by.by,
                     by.place.world,
                     spares == 0   ? ""
                     : spares == 1 ? " and a spare"
                                   : fmt::format(" and {} spares", spares),
                     wanted == "auto" ? to_string(carrier(by, shards)) : wanted,
                     is_srun_over_mpi(by) ? " (srun --mpi=none is for other communicators)" : "");
}

std::string place_is_fixed(const launched& by) {
  return fmt::format("{0} has started the processes of the ranks: call {0} {1} N again", by.by,
                     by.count);
}

}  // namespace troupe::program
