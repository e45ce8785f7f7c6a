// Goal: under mpirun a job takes its rank and its number of ranks from mpirun. Settings that
// contradict mpirun are refused with the fix.
#include "apps/troupe/mpirun.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "tests/unit/apps/small_schema.hpp"
#include "troupe/failure.hpp"

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
