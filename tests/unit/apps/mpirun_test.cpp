// Goal: under mpirun a job takes its rank and its number of ranks from mpirun. Settings that
// contradict mpirun are refused with the fix.
#include "apps/troupe/mpirun.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "tests/unit/apps/small_schema.hpp"
#include "troupe/failure.hpp"

#include <map>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using namespace troupe::testing;

namespace {

constexpr placed_rank first_of_four{0, 4};

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

TEST_CASE(
    "several copies of the program by torchrun or srun are refused with the call that works") {
  using Catch::Matchers::Contains;
  const auto torchrun = [](const char* world) {
    return facts(
        {{"TORCHELASTIC_RUN_ID", "x"}, {"WORLD_SIZE", world}, {"RANK", "0"}, {"LOCAL_RANK", "0"}});
  };
  CHECK_THROWS_WITH(refuse_copies(torchrun("4"), std::nullopt),
                    Contains("torchelastic has started 4 processes") &&
                        Contains("--ranks 4 --placement processes") && Contains("mpirun -n 4"));
  CHECK_NOTHROW(refuse_copies(torchrun("1"), std::nullopt));
  CHECK_NOTHROW(refuse_copies({}, std::nullopt));
  const auto slurm = [](const char* tasks) {
    return facts({{"SLURM_NTASKS", "4"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_LOCALID", "0"},
                  {"SLURM_STEP_NUM_TASKS", tasks}});
  };
  CHECK_THROWS_WITH(refuse_copies(slurm("4"), std::nullopt), Contains("slurm has started 4"));
  CHECK_NOTHROW(refuse_copies(slurm("1"), std::nullopt));   // a batch script
  CHECK_NOTHROW(refuse_copies(slurm("4"), first_of_four));  // srun with a PMI
}

TEST_CASE("a rank that mpirun placed knows its host from mpirun's variables") {
  const auto mpirun = facts({{"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_RANK", "3"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CHECK(place_of_rank(placed_rank{3, 4}, mpirun, 3, 4)->local_rank() == 1);
  CHECK(place_of_rank(placed_rank{3, 4}, mpirun, 2, 4)->local_rank() == 2);  // not this rank
  CHECK(place_of_rank(placed_rank{3, 4}, facts({}), 3, 4)->local_rank() == 3);
  CHECK(place_of_rank(std::nullopt, mpirun, 3, 4)->name() == "local");
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
