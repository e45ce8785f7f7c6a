// Goal: a file is missing from a folder or damaged: the command's error names it.
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <nlohmann/json.hpp>

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
    CHECK_THAT(said.out, Catch::Contains("unknown"));
    CHECK_THAT(said.err, Catch::Contains(run + "/result.json is damaged"));
    CHECK_THAT(troupe_says({"status", run, "--json"}).out,
               Catch::Contains("\"state\":\"unknown\""));
    CHECK_THAT(troupe_says({"report", run, "--json"}).out,
               Catch::Contains("\"state\":\"unknown\""));
  }
}

TEST_CASE("status of a run with restarts: it lists the generations", "[program]") {
  const temporary_folder folder;
  const auto run = (folder.path() / "run").string();
  REQUIRE(troupe_says({"fit", "--max-steps", "2", "--run-dir", run}).code == 0);
  CHECK_THAT(troupe_says({"status", run}).out, !Catch::Contains("restarts"));
  std::ofstream{run + "/result.json"} << R"({"status": "finished", "restarts": 1, "generations": [
    {"generation": 1, "ranks": 2, "base_step": 0, "steps_redone": 0, "ended_by":
      {"type": "signal", "what": "killed", "rank": 1, "hook": "backward", "step": 1}},
    {"generation": 2, "ranks": 2, "base_step": 1, "steps_redone": 1, "ended_by": "finished"}, 3]})";
  CHECK_THAT(troupe_says({"status", run}).out, Catch::Contains(R"(restarts 1
generation 1: 2 ranks from step 0 on; rank 1 failed in backward at step 1: signal: killed
generation 2: 2 ranks from step 1 on, steps done again: 1; finished
)"));
  CHECK_THAT(troupe_says({"status", run, "--json"}).out, Catch::Contains("\"restarts\":1"));
}

TEST_CASE("checkpoint list of a folder without checkpoints reports that there are none",
          "[program]") {
  const temporary_folder folder;
  const auto said = troupe_says({"checkpoint", "list", folder.path().string()});
  CHECK(said.code == 0);
  CHECK(said.out.empty());
  CHECK_THAT(said.err, Catch::Contains("holds no checkpoint"));
}

TEST_CASE("config print of a file whose name is no UTF-8 is JSON all the same", "[program]") {
  const temporary_folder folder;
  const auto file = (folder.path() / "\xff.toml").string();
  std::ofstream{file} << "ranks = 1\n";
  const auto said = troupe_says({"config", "print", "--config", file, "--json"});
  CHECK(said.err.empty());
  CHECK(said.code == 0);
  REQUIRE(lines_of(said.out).size() == 1);
  CHECK(lines_of(said.out).front()["settings"]["ranks"]["value"] == 1);
}
