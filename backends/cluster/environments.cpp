// Variables and rules of Lightning 2.6's environments; docs/clusters.md has the table.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "backends/cluster/host_list.hpp"
#include "troupe/failure.hpp"
#include "troupe/ports.hpp"

namespace troupe {

namespace {

constexpr std::uint16_t usual_port = 12910;

[[noreturn]] void refuse(std::string_view environment, const std::string& why) {
  throw user_error(errc::bad_configuration,
                   fmt::format("the {} environment cannot be used: {}", environment, why));
}

// The variables of one environment.
class reader {
public:
  reader(std::string_view environment, const cluster_facts& from)
      : environment_(environment), from_(from) {}

  std::optional<std::string> text(const std::string& name) const {
    return from_.variable ? from_.variable(name) : std::nullopt;
  }
  std::string wanted_text(const std::string& name) const {
    auto found = text(name);
    if (!found || found->empty()) refuse(environment_, name + " is not set");
    return *found;
  }
  template <class T = std::int32_t>
  std::optional<T> number(const std::string& name) const {
    const auto found = text(name);
    if (!found) return std::nullopt;
    T x = 0;
    const auto* end = found->data() + found->size();
    const auto [rest, error] = std::from_chars(found->data(), end, x);
    if (error != std::errc{} || rest != end || x < 0)
      refuse(environment_, fmt::format("{} = \"{}\" is no number from 0 on", name, *found));
    return x;
  }
  std::int32_t wanted(const std::string& name) const {
    const auto found = number(name);
    if (!found) refuse(environment_, name + " is not set");
    return *found;
  }
  // The first of these variables that is set.
  std::int32_t any_of(std::initializer_list<const char*> names) const {
    for (const auto* name : names)
      if (const auto found = number(name)) return *found;
    refuse(environment_, fmt::format("{} is not set", *names.begin()));
  }
  std::optional<std::uint16_t> port(const std::string& name) const {
    const auto found = number(name);
    if (!found) return std::nullopt;
    if (*found > 0xffff) refuse(environment_, fmt::format("{} = {} is no port", name, *found));
    return static_cast<std::uint16_t>(*found);
  }
  std::vector<std::string> lines(const std::string& path) const {
    return from_.lines ? from_.lines(path) : std::vector<std::string>{};
  }
  const std::string& host() const { return from_.host; }

private:
  std::string_view environment_;
  const cluster_facts& from_;
};

struct place_of_rank {
  std::int32_t world = 1;
  std::int32_t rank = 0;
  std::int32_t local_rank = 0;
  std::int32_t node_rank = 0;
  std::string main_address;
  std::optional<std::uint16_t> main_port;
  // What the launcher says about the job; none: nothing.
  std::optional<std::int32_t> nodes, ranks_per_node;
};

// An environment whose launcher has started the processes.
class launched : public cluster_environment {
public:
  launched(std::string_view name, place_of_rank where) : name_(name), where_(std::move(where)) {
    if (where_.world < 1) refuse(name_, "it says that there are 0 ranks");
    if (where_.rank >= where_.world)
      refuse(name_, fmt::format("it says rank {} of {}", where_.rank, where_.world));
    if (where_.local_rank > where_.rank)
      refuse(name_,
             fmt::format("it says local rank {} for rank {}", where_.local_rank, where_.rank));
  }
  std::string_view name() const override { return name_; }
  std::int32_t world() const override { return where_.world; }
  std::int32_t rank() const override { return where_.rank; }
  std::int32_t local_rank() const override { return where_.local_rank; }
  std::int32_t node_rank() const override { return where_.node_rank; }
  std::string main_address() const override { return where_.main_address; }
  std::optional<std::uint16_t> main_port() const override { return where_.main_port; }
  bool has_processes() const override { return true; }
  void check(std::int32_t nodes, std::int32_t ranks_per_node) const override {
    if (where_.nodes && *where_.nodes != nodes)
      refuse(name_, fmt::format("it has {} hosts, and the job wants {}", *where_.nodes, nodes));
    if (where_.ranks_per_node && *where_.ranks_per_node != ranks_per_node)
      refuse(name_, fmt::format("it has {} ranks on each host, and the job wants {}",
                                *where_.ranks_per_node, ranks_per_node));
    if (std::int64_t{nodes} * ranks_per_node != where_.world)
      refuse(name_, fmt::format("it has {} ranks, and the job wants {} on each of {} hosts",
                                where_.world, ranks_per_node, nodes));
  }

private:
  std::string_view name_;
  place_of_rank where_;
};

cluster_environment_ptr made(std::string_view name, place_of_rank where) {
  return std::make_shared<launched>(name, std::move(where));
}

// Lightning's port, by the job, for its first step. Steps of a job may run at the same time.
std::uint16_t slurm_port(const reader& read) {
  constexpr std::uint64_t first_port = 15000;
  constexpr std::uint64_t ports = 10'000;
  constexpr std::uint64_t between_steps = 1009;
  const auto job =
      read.number<std::int64_t>("SLURM_JOB_ID");  // above 2^31 in a federation of clusters
  if (!job) return usual_port;
  const auto text = read.text("SLURM_STEP_ID").value_or("0");
  std::uint32_t step = 0;  // above 2^31 in a batch script
  std::from_chars(text.data(), text.data() + text.size(), step);
  const auto number = static_cast<std::uint64_t>(*job) + between_steps * step;
  return static_cast<std::uint16_t>(first_port + number % ports);
}

// In a shell that Slurm has opened, SLURM_NTASKS is set and a program is started once. The steps
// that are started there have the shell's name as their job's, and several tasks. So has each task
// of `srun -n 4 bash -c ...` outside of a job.
bool in_shell_of_slurm(const cluster_facts& from) {
  const auto job = from.variable("SLURM_JOB_NAME");
  if (job != "bash" && job != "interactive") return false;
  // `srun -n 4 --pty bash`: a job whose first step is the shell
  const bool terminal = job == "bash" && from.variable("SLURM_PTY_PORT").has_value() &&
                        from.variable("SLURM_STEP_ID") == "0";
  return terminal || from.variable("SLURM_STEP_NUM_TASKS").value_or("1") == "1";
}

}  // namespace

cluster_environment_ptr torchelastic_environment(const cluster_facts& from) {
  const reader read{"torchelastic", from};
  place_of_rank at;
  at.world = read.wanted("WORLD_SIZE");
  at.rank = read.wanted("RANK");
  at.local_rank = read.wanted("LOCAL_RANK");
  at.node_rank = read.number("GROUP_RANK").value_or(0);
  at.main_address = read.text("MASTER_ADDR").value_or("127.0.0.1");
  at.main_port = read.port("MASTER_PORT").value_or(usual_port);
  return made("torchelastic", std::move(at));
}

cluster_environment_ptr slurm_environment(const cluster_facts& from) {
  const reader read{"slurm", from};
  place_of_rank at;
  at.world = read.wanted("SLURM_NTASKS");
  at.rank = read.wanted("SLURM_PROCID");
  at.local_rank = read.wanted("SLURM_LOCALID");
  at.node_rank = read.number("SLURM_NODEID").value_or(0);
  at.nodes = read.number("SLURM_NNODES");
  at.ranks_per_node = read.number("SLURM_NTASKS_PER_NODE");
  // A step may be on some hosts of its job only.
  const auto* list = read.text("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST";
  const auto nodes = read.text(list).value_or("127.0.0.1");
  const auto first = first_host(nodes);
  if (!first) refuse("slurm", fmt::format("{} = \"{}\" is no list of hosts", list, nodes));
  at.main_address = read.text("MASTER_ADDR").value_or(*first);
  at.main_port = read.port("MASTER_PORT");
  if (!at.main_port) at.main_port = slurm_port(read);
  return made("slurm", std::move(at));
}

cluster_environment_ptr lsf_environment(const cluster_facts& from) {
  constexpr std::uint16_t first_port = 10'000;
  const reader read{"lsf", from};
  const auto file = read.wanted_text("LSB_DJOB_RANKFILE");
  // A line per rank, and before them one for the host that launched the job.
  auto lines = read.lines(file);
  std::erase(lines, "");
  if (lines.size() < 2)
    refuse("lsf", fmt::format("{} (LSB_DJOB_RANKFILE) names no host of a rank", file));
  std::vector<std::string> hosts;
  for (auto line = lines.begin() + 1; line != lines.end(); ++line)
    if (std::ranges::find(hosts, *line) == hosts.end()) hosts.push_back(*line);
  const auto own = std::ranges::find(hosts, read.host());
  if (own == hosts.end())
    refuse("lsf",
           fmt::format("{} (LSB_DJOB_RANKFILE) does not name this host, {}", file, read.host()));
  place_of_rank at;
  at.world = read.wanted("JSM_NAMESPACE_SIZE");
  at.rank = read.wanted("JSM_NAMESPACE_RANK");
  at.local_rank = read.wanted("JSM_NAMESPACE_LOCAL_RANK");
  at.node_rank = static_cast<std::int32_t>(own - hosts.begin());
  at.nodes = static_cast<std::int32_t>(hosts.size());
  at.main_address = hosts.front();
  at.main_port = read.port("MASTER_PORT");
  if (!at.main_port)
    at.main_port = static_cast<std::uint16_t>(first_port + read.wanted("LSB_JOBID") % 1000);
  return made("lsf", std::move(at));
}

cluster_environment_ptr mpi_environment(const cluster_facts& from) {
  const reader read{"mpi", from};
  place_of_rank at;
  at.world = read.any_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  at.rank = read.any_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK"});
  at.local_rank = read.any_of({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"});
  const auto here = read.any_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"});
  // MPI does not count hosts. With equal hosts and ranks in blocks, this is the index.
  if (here > 0 && at.world % here == 0 && at.rank % here == at.local_rank) {
    at.node_rank = at.rank / here;
    at.nodes = at.world / here;
  }
  return made("mpi", std::move(at));
}

cluster_environment_ptr kubeflow_environment(const cluster_facts& from) {
  const reader read{"kubeflow", from};
  place_of_rank at;
  at.world = read.wanted("WORLD_SIZE");
  at.rank = read.wanted("RANK");
  at.node_rank = at.rank;
  at.nodes = at.world;
  at.ranks_per_node = 1;
  at.main_address = read.wanted_text("MASTER_ADDR");
  at.main_port = read.port("MASTER_PORT");
  if (!at.main_port) refuse("kubeflow", "MASTER_PORT is not set");
  return made("kubeflow", std::move(at));
}

cluster_environment_ptr xla_environment(const cluster_facts& from) {
  const reader read{"xla", from};
  const auto here = read.number("PJRT_LOCAL_PROCESS_COUNT").value_or(1);
  if (here < 1) refuse("xla", "PJRT_LOCAL_PROCESS_COUNT is 0");
  const auto hosts = split_hosts(read.text("TPU_WORKER_HOSTNAMES").value_or("127.0.0.1"));
  place_of_rank at;
  at.node_rank = read.number("TPU_WORKER_ID").value_or(0);
  at.local_rank = read.number("PJRT_LOCAL_PROCESS_RANK").value_or(0);
  if (hosts.empty()) refuse("xla", "TPU_WORKER_HOSTNAMES names no host");
  at.nodes = static_cast<std::int32_t>(hosts.size());
  at.ranks_per_node = here;
  at.world = here * *at.nodes;
  at.rank = at.node_rank * here + at.local_rank;
  at.main_address = hosts.front();
  return made("xla", std::move(at));
}

detected_environment detect_environment(const cluster_facts& from) {
  const auto set = [&](const char* name) { return from.variable && from.variable(name); };
  if (set("TORCHELASTIC_RUN_ID"))
    return {torchelastic_environment(from), "TORCHELASTIC_RUN_ID is set"};
  if (set("SLURM_NTASKS") && set("SLURM_PROCID") && !in_shell_of_slurm(from))
    return {slurm_environment(from), "SLURM_NTASKS and SLURM_PROCID are set"};
  if (set("LSB_JOBID") && set("LSB_DJOB_RANKFILE") && set("JSM_NAMESPACE_SIZE"))
    return {lsf_environment(from), "LSB_JOBID, LSB_DJOB_RANKFILE and JSM_NAMESPACE_SIZE are set"};
  if (set("OMPI_COMM_WORLD_SIZE")) return {mpi_environment(from), "OMPI_COMM_WORLD_SIZE is set"};
  if (set("PMI_SIZE") && set("MPI_LOCALNRANKS"))
    return {mpi_environment(from), "PMI_SIZE and MPI_LOCALNRANKS are set"};
  if (set("PJRT_DEVICE") && from.variable("PJRT_DEVICE") == "TPU")
    return {xla_environment(from), "PJRT_DEVICE is TPU"};
  return {nullptr, "no variable of a launcher is set"};
}

}  // namespace troupe
