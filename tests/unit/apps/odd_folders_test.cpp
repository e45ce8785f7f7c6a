// Goal: folders in which something is missing or damaged: the command says what.
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <filesystem>
#include <fstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("status of a run with a damaged result.json names the file", "[program]") {
  const temporary_folder folder;
  const auto run = (folder.path() / "run").string();
  REQUIRE(troupe_says({"fit", "--max-steps", "2", "--run-dir", run}).code == 0);
  CHECK_THAT(troupe_says({"status", run}).err, !Catch::Contains("damaged"));
  for (const std::string text : {"{\"schema\"", "[1, 2]", ""}) {
    std::ofstream{run + "/result.json"} << text;
    const auto said = troupe_says({"status", run});
    INFO(text << ": " << said.out);
    CHECK(said.code == 0);
    CHECK_THAT(said.out, Catch::Contains("interrupted"));
    CHECK_THAT(said.err, Catch::Contains(run + "/result.json is damaged"));
  }
}

TEST_CASE("the list of a folder without checkpoints says that there are none", "[program]") {
  const temporary_folder folder;
  const auto said = troupe_says({"checkpoint", "list", folder.path().string()});
  CHECK(said.code == 0);
  CHECK(said.out.empty());
  CHECK_THAT(said.err, Catch::Contains("holds no checkpoint"));
}
