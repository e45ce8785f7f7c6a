// Goal: a job that a launcher has started takes its rank and its number of ranks from it. Settings
// that contradict the launcher are refused with the fix.
#include "apps/troupe/launched.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "tests/unit/apps/small_schema.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <map>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using namespace troupe::testing;

namespace {

const launched first_of_four{.place = {0, 4}, .by = "mpirun", .count = "-n"};

settings settings_with(std::vector<given::flag_value> flags) {
  return settled(join(table(), {{}, {}, {}, std::move(flags)}));
}

std::string place_refusal(std::vector<given::flag_value> flags) {
  auto all = settings_with(std::move(flags));
  try {
    take_place(all, first_of_four);
  } catch (const user_error& error) {
    CHECK(error.code() == errc::bad_configuration);
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("under mpirun a job has mpirun's number of ranks and the mpi communicator") {
  using Catch::Matchers::Contains;
  auto all = settings_with({});
  take_place(all, first_of_four);
  CHECK(all.integer("ranks") == 4);
  job what;
  take_place(what, first_of_four);
  CHECK(what.options.placement == placement_kind::processes);
  CHECK(what.options.communicator == communicator_kind::mpi);

  CHECK(place_refusal({{"ranks", "--ranks", {"4"}},
                       {"communicator", "--communicator", {"mpi"}},
                       {"placement", "--placement", {"processes"}}}) == "nothing was refused");
  CHECK_THAT(place_refusal({{"ranks", "--ranks", {"3"}}}),
             Contains("mpirun -n 3") && Contains("--ranks 4"));
  CHECK_THAT(place_refusal({{"placement", "--placement", {"threads"}}}),
             Contains("without mpirun"));
  CHECK_THAT(place_refusal({{"communicator", "--communicator", {"tcp"}}}),
             Contains("--placement processes for tcp"));
}

namespace {

cluster_facts facts(std::map<std::string, std::string> set) {
  cluster_facts all;
  all.variable = [set = std::move(set)](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional{found->second};
  };
  return all;
}

}  // namespace

TEST_CASE("processes of torchrun, srun and jsrun are ranks: over shm on one host, else over tcp") {
  const auto torchrun = launched_by(facts({{"TORCHELASTIC_RUN_ID", "x"},
                                           {"TORCHELASTIC_RESTART_COUNT", "2"},
                                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                           {"WORLD_SIZE", "4"},
                                           {"LOCAL_WORLD_SIZE", "4"},
                                           {"RANK", "3"},
                                           {"LOCAL_RANK", "3"},
                                           {"MASTER_ADDR", "one"},
                                           {"MASTER_PORT", "4711"}}));
  REQUIRE(torchrun);
  CHECK(torchrun->place == placed_rank{3, 4});
  CHECK(torchrun->by == "torchrun");
  CHECK(torchrun->over == communicator_kind::shm);
  CHECK(torchrun->one_host());
  CHECK(torchrun->store_is_served);
  CHECK(torchrun->store_host == "one");
  CHECK(torchrun->store_port == 4711);
  CHECK(torchrun->store_prefix == "troupe x 2 ");

  const auto slurm = [](const char* hosts) {
    return launched_by(facts({{"SLURM_NTASKS", "4"},
                              {"SLURM_PROCID", "2"},
                              {"SLURM_LOCALID", "0"},
                              {"SLURM_NODELIST", "n[7-8]"},
                              {"SLURM_JOB_ID", "123456"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_STEP_NUM_TASKS", "4"},
                              {"SLURM_STEP_NUM_NODES", hosts}}));
  };
  REQUIRE(slurm("2"));
  CHECK(slurm("2")->place == placed_rank{2, 4});
  CHECK(slurm("2")->by == "srun");
  CHECK_FALSE(slurm("2")->one_host());
  CHECK(slurm("2")->over == communicator_kind::tcp);
  CHECK(slurm("1")->one_host());
  CHECK(slurm("1")->over == communicator_kind::shm);
  CHECK_FALSE(slurm("2")->store_is_served);
  CHECK(slurm("2")->store_host == "n7");
  CHECK(slurm("2")->store_port == 18456);
  CHECK(slurm("2")->store_prefix == "troupe 123456 0 ");

  auto lsf = facts({{"LSB_JOBID", "7"},
                    {"LSB_DJOB_RANKFILE", "file"},
                    {"PMIX_NAMESPACE", "3"},
                    {"JSM_NAMESPACE_SIZE", "2"},
                    {"JSM_NAMESPACE_RANK", "1"},
                    {"JSM_NAMESPACE_LOCAL_RANK", "0"}});
  lsf.lines = [](const std::string&) { return std::vector<std::string>{"login", "a", "b"}; };
  lsf.host = "b";
  const auto jsrun = launched_by(lsf);
  REQUIRE(jsrun);
  CHECK(jsrun->by == "jsrun");
  CHECK(jsrun->over == communicator_kind::tcp);
  CHECK(jsrun->store_host == "a");
  CHECK(jsrun->store_port == 10007);
  CHECK(jsrun->store_prefix == "troupe 7 3 ");
}

TEST_CASE("no launcher: one process, a batch script, or variables that contradict each other") {
  CHECK_FALSE(launched_by({}));
  CHECK_FALSE(launched_by(facts({})));
  CHECK_FALSE(launched_by(facts({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}})));
  CHECK(by_mpirun(facts({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}})));
  CHECK_FALSE(launched_by(facts(
      {{"TORCHELASTIC_RUN_ID", "x"}, {"WORLD_SIZE", "1"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}})));
  CHECK_FALSE(launched_by(facts({{"SLURM_NTASKS", "4"},
                                 {"SLURM_PROCID", "0"},
                                 {"SLURM_LOCALID", "0"},
                                 {"SLURM_STEP_NUM_TASKS", "1"}})));
  const auto wrong = facts(
      {{"TORCHELASTIC_RUN_ID", "x"}, {"WORLD_SIZE", "2"}, {"RANK", "2"}, {"LOCAL_RANK", "0"}});
  CHECK_FALSE(launched_by(wrong));
  CHECK_THROWS_WITH(refuse_copies(wrong, std::nullopt),
                    Catch::Matchers::Contains("it says rank 2 of 2"));
}

TEST_CASE("mpirun's variables come before those of the job in which it was called") {
  const auto found = launched_by(facts({{"SLURM_NTASKS", "4"},
                                        {"SLURM_PROCID", "0"},
                                        {"SLURM_STEP_NUM_TASKS", "4"},
                                        {"OMPI_COMM_WORLD_RANK", "1"},
                                        {"OMPI_COMM_WORLD_SIZE", "2"},
                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  REQUIRE(found);
  CHECK(found->by == "mpirun");
  CHECK(found->over == communicator_kind::mpi);
  CHECK(found->place == placed_rank{1, 2});
  CHECK(found->one_host());
}

TEST_CASE("torchrun's variables come before those of the mpirun that started it") {
  const std::map<std::string, std::string> torchrun{
      {"TORCHELASTIC_RUN_ID", "x"}, {"WORLD_SIZE", "4"}, {"RANK", "3"}, {"LOCAL_RANK", "1"}};
  for (const auto* size : {"1", "2"}) {
    for (const auto* of : {"PMI", "OMPI_COMM_WORLD"}) {
      auto both = torchrun;
      both[fmt::format("{}_RANK", of)] = "0";
      both[fmt::format("{}_SIZE", of)] = size;
      CHECK_FALSE(by_mpirun(facts(both)));
      const auto found = launched_by(facts(both));
      REQUIRE(found);
      CHECK(found->by == "torchrun");
      CHECK(found->place == placed_rank{3, 4});
    }
  }
}

TEST_CASE("srun with a PMI: over mpi, or without MPI as any srun, and errors name srun's flag") {
  using Catch::Matchers::Contains;
  std::map<std::string, std::string> set{{"SLURM_NTASKS", "4"},
                                         {"SLURM_PROCID", "2"},
                                         {"SLURM_LOCALID", "0"},
                                         {"SLURM_STEP_ID", "0"},
                                         {"SLURM_STEP_NUM_TASKS", "4"},
                                         {"SLURM_STEP_NUM_NODES", "2"},
                                         {"SLURM_NODELIST", "n[7-8]"},
                                         {"PMI_RANK", "2"},
                                         {"PMI_SIZE", "4"}};
  const auto found = launched_by(facts(set), true);
  REQUIRE(found);
  CHECK(found->by == "srun");
  CHECK(found->over == communicator_kind::mpi);
  CHECK(found->place == placed_rank{2, 4});
  CHECK(found->per_host == 2);
  CHECK(found->hosts == 2);
  CHECK(place_of_rank(found, facts(set), 2, 4, 0)->local_rank() == 0);
  auto tcp = settings_with({{"communicator", "--communicator", {"tcp"}}});
  CHECK_THROWS_WITH(take_place(tcp, found),
                    Contains("srun's processes") && Contains("or call srun --mpi=none"));
  auto three = settings_with({{"ranks", "--ranks", {"3"}}});
  CHECK_THROWS_WITH(take_place(three, found), Contains("call srun -n 3"));
  CHECK_THAT(place_note(*found, settings_with({})), Contains("over mpi (srun --mpi=none"));

  const auto without_mpi = launched_by(facts(set), false);
  REQUIRE(without_mpi);
  CHECK(without_mpi->by == "srun");
  CHECK(without_mpi->over == communicator_kind::tcp);

  // An mpirun in the step: with two helpers, or one rank on each host.
  auto hydra = set;
  hydra["SLURM_PROCID"] = "1";
  hydra["SLURM_STEP_NUM_TASKS"] = "2";
  CHECK(launched_by(facts(hydra))->by == "mpirun");
  set["MPI_LOCALNRANKS"] = "1";
  CHECK(launched_by(facts(set))->by == "mpirun");
}

TEST_CASE("several copies by a launcher without a main address are refused") {
  using Catch::Matchers::Contains;
  const auto xla = facts({{"PJRT_DEVICE", "TPU"}, {"PJRT_LOCAL_PROCESS_COUNT", "4"}});
  CHECK_FALSE(launched_by(xla));
  CHECK_THROWS_WITH(refuse_copies(xla, std::nullopt),
                    Contains("xla has started 4 copies") &&
                        Contains("--ranks 4 --placement processes") && Contains("mpirun -n 4"));
  CHECK_NOTHROW(refuse_copies({}, std::nullopt));
  CHECK_NOTHROW(refuse_copies(xla, first_of_four));
}

TEST_CASE("torchrun's number of processes and tcp contradict other settings") {
  using Catch::Matchers::Contains;
  const launched by{.place = {0, 2},
                    .by = "torchrun",
                    .count = "--nproc-per-node",
                    .over = communicator_kind::tcp};
  auto three = settings_with({{"ranks", "--ranks", {"3"}}});
  CHECK_THROWS_WITH(take_place(three, by), Contains("torchrun --nproc-per-node 3"));
  auto shm = settings_with({{"communicator", "--communicator", {"shm"}}});
  CHECK_THROWS_WITH(take_place(shm, by), Contains("over tcp; leave it out"));
  job what;
  take_place(what, by);
  CHECK(what.options.communicator == communicator_kind::tcp);
}

TEST_CASE("processes of a launcher on one host may use tcp in place of shm") {
  using Catch::Matchers::Contains;
  const launched by{.place = {0, 2}, .by = "srun", .count = "-n", .over = communicator_kind::shm};
  auto tcp = settings_with({{"communicator", "--communicator", {"tcp"}}});
  take_place(tcp, by);
  CHECK(place_note(by, tcp) == "srun started 2 processes: they are the ranks, over tcp");
  job what;
  what.options.communicator = communicator_kind::tcp;
  take_place(what, by);
  CHECK(what.options.communicator == communicator_kind::tcp);
  job any;
  take_place(any, by);
  CHECK(any.options.communicator == communicator_kind::shm);
  any.options.elastic.shards = 256;
  any.options.communicator = communicator_kind::automatic;
  take_place(any, by);
  CHECK(any.options.communicator == communicator_kind::shm);
  any.options.elastic.shards = 257;  // more than shm carries
  any.options.communicator = communicator_kind::automatic;
  take_place(any, by);
  CHECK(any.options.communicator == communicator_kind::tcp);
  auto many = settings_with({{"elastic.shards", "--shards", {"257"}}});
  CHECK(place_note(by, many) == "srun started 2 processes: they are the ranks, over tcp");
  auto hier = settings_with({{"communicator", "--communicator", {"hier"}}});
  CHECK_NOTHROW(take_place(hier, by));
  CHECK_THROWS_WITH(take_place(hier, first_of_four), Contains("over mpi; leave it out"));
  auto inproc = settings_with({{"communicator", "--communicator", {"inproc"}}});
  CHECK_THROWS_WITH(take_place(inproc, by), Contains("over shm; leave it out"));
  CHECK_THROWS_WITH(take_place(tcp, first_of_four), Contains("over mpi; leave it out"));
}

TEST_CASE("a rank that a launcher placed knows its host from the launcher's variables") {
  const auto mpirun = facts({{"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_RANK", "3"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CHECK(place_of_rank(first_of_four, mpirun, 3, 4, 0)->local_rank() == 1);
  CHECK(place_of_rank(first_of_four, mpirun, 2, 4, 0)->local_rank() == 2);  // not this rank
  CHECK(place_of_rank(first_of_four, facts({}), 3, 4, 0)->local_rank() == 3);
  CHECK(place_of_rank(std::nullopt, mpirun, 3, 4, 0)->name() == "local");
}

namespace {

// The local rank and the local world of each rank.
std::vector<std::pair<std::int32_t, std::int32_t>> local_places(const launched& by,
                                                                std::int32_t world,
                                                                std::int32_t spares) {
  std::vector<std::pair<std::int32_t, std::int32_t>> all;
  for (std::int32_t rank = 0; rank < world; ++rank) {
    const auto place = place_of_rank(by, facts({}), rank, world, spares);
    CHECK(place->rank() == rank);
    CHECK(place->world() == world);
    all.emplace_back(place->local_rank(), place->local_world());
  }
  return all;
}

using expected_places = std::vector<std::pair<std::int32_t, std::int32_t>>;

}  // namespace

TEST_CASE("of ranks that share a launcher's process, one on each host has local rank 0") {
  const launched by{.place = {1, 4}, .by = "srun", .count = "-n", .per_host = 2};
  CHECK(local_places(by, 4, 0) ==
        expected_places{{0, 2}, {1, 2}, {0, 2}, {1, 2}});  // a rank that has moved here
  CHECK(local_places(by, 6, 0) == expected_places{{0, 4}, {1, 4}, {2, 4}, {3, 4}, {0, 2}, {1, 2}});
  // The fourth process is a spare.
  CHECK(local_places(by, 3, 1) == expected_places{{0, 2}, {1, 2}, {0, 1}});
  CHECK(local_places(by, 4, 1) == expected_places{{0, 3}, {1, 3}, {2, 3}, {0, 1}});
  const auto all = facts({{"SLURM_NTASKS", "4"},
                          {"SLURM_PROCID", "0"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODELIST", "n[7-8]"}});
  CHECK(place_of_rank(by, all, 0, 4, 1)->local_world() == 3);
}

TEST_CASE("of srun's hosts the last ones may have a process fewer") {
  const auto by = launched_by(facts({{"SLURM_NTASKS", "5"},
                                     {"SLURM_PROCID", "3"},
                                     {"SLURM_LOCALID", "0"},
                                     {"SLURM_NODELIST", "n[1-4]"},
                                     {"SLURM_STEP_NUM_TASKS", "5"},
                                     {"SLURM_STEP_NUM_NODES", "4"}}));
  REQUIRE(by);
  CHECK(local_places(*by, 10, 0) ==
        expected_places{
            {0, 4}, {1, 4}, {2, 4}, {3, 4}, {0, 2}, {1, 2}, {0, 2}, {1, 2}, {0, 2}, {1, 2}});
  CHECK(local_places(*by, 4, 1) == expected_places{{0, 2}, {1, 2}, {0, 1}, {0, 1}});
}

TEST_CASE("processes that the launcher started beyond the ranks are the spares") {
  using Catch::Matchers::Contains;
  const launched by{.place = {0, 5}, .by = "srun", .count = "-n", .over = communicator_kind::tcp};
  auto some = settings_with({{"elastic.spares", "--spares", {"2"}}});
  take_place(some, by);
  CHECK(some.integer("ranks") == 3);
  CHECK(place_note(by, some) ==
        "srun started 5 processes: they are the ranks and 2 spares, over tcp");
  auto both = settings_with({{"elastic.spares", "--spares", {"2"}}, {"ranks", "--ranks", {"4"}}});
  CHECK_THROWS_WITH(take_place(both, by), Contains("srun started 5 processes") &&
                                              Contains("elastic.spares = 2 (flag --spares)") &&
                                              Contains("ranks = 4") && Contains("srun -n 6"));
  auto all = settings_with({{"elastic.spares", "--spares", {"5"}}});
  CHECK_THROWS_WITH(take_place(all, by), Contains("srun -n 6"));
}

TEST_CASE("under mpirun a run folder with placement threads is accepted") {
  settings all = settings_with({});
  REQUIRE_FALSE(all.set("placement", std::string{"threads"}, {source::file, "config.toml"}));
  REQUIRE_FALSE(all.set("ranks", std::int64_t{4}, {source::file, "config.toml"}));
  CHECK_NOTHROW(take_place(all, first_of_four));
}

TEST_CASE("without mpirun the settings are unchanged") {
  auto all = settings_with({{"ranks", "--ranks", {"3"}}});
  take_place(all, std::nullopt);
  CHECK(all.integer("ranks") == 3);
  job what;
  take_place(what, std::nullopt);
  CHECK(what.options.placement == placement_kind::threads);
}
