// Goal: each launcher's variables give the rank, the hosts and the address that Lightning's
// environments give. Variables that are missing or contradict each other are refused by name.
#include <map>
#include <string>
#include <vector>

#include "backends/cluster/host_list.hpp"
#include "troupe/failure.hpp"
#include "troupe/ports.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

using variables = std::map<std::string, std::string>;

const std::vector<std::string> rank_file{"login", "node7", "node7", "node3", "node3", ""};

cluster_facts facts(const variables& set) {
  cluster_facts all;
  all.variable = [set](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional{found->second};
  };
  all.lines = [](const std::string& path) {
    return path == "/rank_file" ? rank_file : std::vector<std::string>{};
  };
  all.host = "node3";
  return all;
}

struct row {
  const char* name;  // of the environment that is detected
  variables set;
  std::int32_t world, rank, local_rank, node_rank;
  const char* address;
  std::optional<std::uint16_t> port;
};

const variables torchrun{{"TORCHELASTIC_RUN_ID", "x"}, {"WORLD_SIZE", "8"}, {"RANK", "5"},
                         {"LOCAL_RANK", "1"},          {"GROUP_RANK", "1"}, {"MASTER_ADDR", "h0"},
                         {"MASTER_PORT", "29500"}};
const variables slurm{{"SLURM_NTASKS", "6"},        {"SLURM_PROCID", "4"},
                      {"SLURM_LOCALID", "0"},       {"SLURM_NODEID", "2"},
                      {"SLURM_NNODES", "3"},        {"SLURM_NTASKS_PER_NODE", "2"},
                      {"SLURM_JOB_NAME", "train"},  {"SLURM_NODELIST", "cn[07-09],gpu1"},
                      {"SLURM_JOB_ID", "12345678"}, {"SLURM_STEP_NUM_TASKS", "6"}};
const variables lsf{{"LSB_JOBID", "4321"},
                    {"LSB_DJOB_RANKFILE", "/rank_file"},
                    {"JSM_NAMESPACE_SIZE", "4"},
                    {"JSM_NAMESPACE_RANK", "2"},
                    {"JSM_NAMESPACE_LOCAL_RANK", "0"}};
const variables open_mpi{{"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const variables mpich{
    {"PMI_SIZE", "3"}, {"PMI_RANK", "2"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}};
const variables tpu{{"PJRT_DEVICE", "TPU"},
                    {"PJRT_LOCAL_PROCESS_COUNT", "4"},
                    {"PJRT_LOCAL_PROCESS_RANK", "3"},
                    {"TPU_WORKER_ID", "1"},
                    {"TPU_WORKER_HOSTNAMES", "t0,t1"}};

variables with(variables set, const char* name, const char* value) {
  set[name] = value;
  return set;
}
variables without(variables set, const char* name) {
  set.erase(name);
  return set;
}

std::string refusal(const variables& set) {
  try {
    detect_environment(facts(set));
  } catch (const user_error& error) {
    CHECK(error.code() == errc::bad_configuration);
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("the variables of each launcher give ranks, hosts and the address", "[cluster]") {
  const std::vector<row> table{
      {"torchelastic", torchrun, 8, 5, 1, 1, "h0", 29500},
      {"torchelastic", without(without(torchrun, "MASTER_ADDR"), "MASTER_PORT"), 8, 5, 1, 1,
       "127.0.0.1", 12910},
      {"torchelastic", without(torchrun, "GROUP_RANK"), 8, 5, 1, 0, "h0", 29500},
      {"slurm", slurm, 6, 4, 0, 2, "cn07", 20678},
      {"slurm", with(slurm, "SLURM_STEP_ID", "0"), 6, 4, 0, 2, "cn07", 20678},
      {"slurm", with(slurm, "SLURM_STEP_ID", "5"), 6, 4, 0, 2, "cn07", 15723},
      {"slurm", with(slurm, "SLURM_STEP_ID", "4294967291"), 6, 4, 0, 2, "cn07", 17297},
      {"slurm", without(slurm, "SLURM_JOB_ID"), 6, 4, 0, 2, "cn07", 12910},
      {"slurm", with(slurm, "SLURM_JOB_ID", "2147483648"), 6, 4, 0, 2, "cn07", 18648},
      {"slurm", with(with(slurm, "MASTER_ADDR", "10.0.0.1"), "MASTER_PORT", "7"), 6, 4, 0, 2,
       "10.0.0.1", 7},
      {"slurm", with(slurm, "SLURM_STEP_NODELIST", "cn08,gpu1"), 6, 4, 0, 2, "cn08", 20678},
      {"slurm", without(slurm, "SLURM_NODELIST"), 6, 4, 0, 2, "127.0.0.1", 20678},
      {"lsf", lsf, 4, 2, 0, 1, "node7", 10321},
      {"lsf", with(lsf, "MASTER_PORT", "99"), 4, 2, 0, 1, "node7", 99},
      {"mpi", open_mpi, 4, 3, 1, 1, "", std::nullopt},
      {"mpi", with(open_mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "3"), 4, 3, 1, 0, "", std::nullopt},
      {"mpi", mpich, 3, 2, 2, 0, "", std::nullopt},
      {"xla", tpu, 8, 7, 3, 1, "t0", std::nullopt},
      {"xla", {{"PJRT_DEVICE", "TPU"}}, 1, 0, 0, 0, "127.0.0.1", std::nullopt},
  };
  for (const auto& one : table) {
    const auto found = detect_environment(facts(one.set));
    REQUIRE(found.which);
    CAPTURE(one.name, found.why);
    CHECK(found.which->name() == one.name);
    CHECK(found.which->world() == one.world);
    CHECK(found.which->rank() == one.rank);
    CHECK(found.which->local_rank() == one.local_rank);
    CHECK(found.which->node_rank() == one.node_rank);
    CHECK(found.which->main_address() == one.address);
    CHECK(found.which->main_port() == one.port);
    CHECK(found.which->has_processes());
  }
}

TEST_CASE("the order of detection is torchelastic, slurm, lsf, mpi, xla, local", "[cluster]") {
  auto all = torchrun;
  for (const auto& more : {slurm, lsf, open_mpi, tpu}) all.insert(more.begin(), more.end());
  const auto name = [&] {
    const auto found = detect_environment(facts(all)).which;
    return found ? std::string{found->name()} : "local";
  };
  std::vector<std::string> order;
  for (const auto* gone : {"TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "LSB_JOBID",
                           "OMPI_COMM_WORLD_SIZE", "PJRT_DEVICE"}) {
    order.push_back(name());
    all.erase(gone);
  }
  order.push_back(name());
  CHECK(order == std::vector<std::string>{"torchelastic", "slurm", "lsf", "mpi", "xla", "local"});
  CHECK_FALSE(detect_environment({}).which);
}

TEST_CASE("a shell in a Slurm allocation is no rank, and the tasks of its steps are", "[cluster]") {
  for (const auto* job : {"bash", "interactive"}) {
    auto shell = with(slurm, "SLURM_JOB_NAME", job);
    CHECK(detect_environment(facts(shell)).which);  // srun -n 6 bash -c ...
    shell["SLURM_PTY_PORT"] = "34889";
    shell["SLURM_STEP_ID"] = "1";
    CHECK(detect_environment(facts(shell)).which);  // a step that was started in the shell
    shell["SLURM_STEP_NUM_TASKS"] = "1";
    CHECK_FALSE(detect_environment(facts(shell)).which);
    CHECK_FALSE(detect_environment(facts(without(shell, "SLURM_STEP_NUM_TASKS"))).which);
  }
  auto terminal = with(with(slurm, "SLURM_JOB_NAME", "bash"), "SLURM_PTY_PORT", "34889");
  terminal["SLURM_STEP_ID"] = "0";
  CHECK_FALSE(detect_environment(facts(terminal)).which);  // srun -n 6 --pty bash
}

TEST_CASE("kubeflow has one rank on each host and needs the address", "[cluster]") {
  const variables set{
      {"WORLD_SIZE", "3"}, {"RANK", "2"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "23456"}};
  const auto found = kubeflow_environment(facts(set));
  CHECK(found->local_rank() == 0);
  CHECK(found->node_rank() == 2);
  CHECK(found->main_address() == "m");
  CHECK(found->main_port() == 23456);
  CHECK_NOTHROW(found->check(3, 1));
  CHECK_THROWS_AS(found->check(1, 3), user_error);
  CHECK_THROWS_AS(kubeflow_environment(facts(without(set, "MASTER_PORT"))), user_error);
  CHECK_FALSE(detect_environment(facts(set)).which);
}

TEST_CASE("variables that are missing or contradict each other are refused with the reason",
          "[cluster]") {
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal(without(torchrun, "LOCAL_RANK")), Contains("LOCAL_RANK is not set"));
  CHECK_THAT(refusal(with(torchrun, "RANK", "8")), Contains("rank 8 of 8"));
  CHECK_THAT(refusal(with(torchrun, "RANK", "-1")), Contains("RANK = \"-1\" is no number"));
  CHECK_THAT(refusal(with(torchrun, "WORLD_SIZE", "8 ")), Contains("WORLD_SIZE = \"8 \""));
  CHECK_THAT(refusal(with(torchrun, "WORLD_SIZE", "0")), Contains("0 ranks"));
  CHECK_THAT(refusal(with(torchrun, "MASTER_PORT", "65536")), Contains("is no port"));
  CHECK_THAT(refusal(with(torchrun, "LOCAL_RANK", "6")), Contains("local rank 6 for rank 5"));
  CHECK_THAT(refusal(with(slurm, "SLURM_NODELIST", "cn[07")), Contains("SLURM_NODELIST"));
  CHECK_THAT(refusal(with(slurm, "SLURM_STEP_NODELIST", "")), Contains("SLURM_STEP_NODELIST"));
  CHECK_THAT(refusal(without(slurm, "SLURM_LOCALID")), Contains("SLURM_LOCALID is not set"));
  CHECK_THAT(refusal(with(lsf, "LSB_DJOB_RANKFILE", "/none")), Contains("/none"));
  CHECK_THAT(refusal(with(lsf, "JSM_NAMESPACE_RANK", "9999999999")), Contains("is no number"));
  CHECK_THAT(refusal(without(open_mpi, "OMPI_COMM_WORLD_RANK")),
             Contains("OMPI_COMM_WORLD_RANK is not set"));
  CHECK_THAT(refusal(with(tpu, "PJRT_LOCAL_PROCESS_COUNT", "0")), Contains("COUNT is 0"));
  CHECK_THAT(refusal(with(tpu, "TPU_WORKER_HOSTNAMES", ",")), Contains("names no host"));
}

TEST_CASE("a job that the launcher has not started so is refused", "[cluster]") {
  const auto check = [](const variables& set, std::int32_t nodes, std::int32_t ranks) {
    detect_environment(facts(set)).which->check(nodes, ranks);
  };
  CHECK_NOTHROW(check(slurm, 3, 2));
  CHECK_THROWS_AS(check(slurm, 2, 3), user_error);
  CHECK_THROWS_AS(check(slurm, 3, 1), user_error);
  CHECK_NOTHROW(check(torchrun, 2, 4));
  CHECK_THROWS_AS(check(torchrun, 2, 3), user_error);
  CHECK_NOTHROW(check(open_mpi, 2, 2));
  CHECK_THROWS_AS(check(open_mpi, 1, 4), user_error);
  CHECK_NOTHROW(local_environment(0, 4).check(1, 4));
}

TEST_CASE("the first host of a list in Slurm's short form", "[cluster]") {
  CHECK(first_host("alpha,beta") == "alpha");
  CHECK(first_host("host[22-24,35]") == "host22");
  CHECK(first_host("n[001,003]-ib,m1") == "n001-ib");
  CHECK(first_host("r[1-2]n[4-8]") == "r1n4");
  CHECK_FALSE(first_host(""));
  CHECK_FALSE(first_host(",a"));
  CHECK_FALSE(first_host("a[]"));
  CHECK_FALSE(first_host("a[1"));
  CHECK_FALSE(first_host("a]1"));
  CHECK(split_hosts("a,,b,") == std::vector<std::string>{"a", "b"});
  CHECK(split_hosts("").empty());
}
