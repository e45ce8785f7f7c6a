// Goal: a whole `troupe fit` in this process, with integers for tensors: the run's folder, failures
// and stops.
#include "apps/troupe/run_folder.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <nlohmann/json.hpp>

#include <csignal>
#include <set>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

using words = std::vector<std::string>;

words operator+(words a, const words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

json result_of(const std::string& run) {
  return json::parse(read_text(fs::path{run} / program::result_file));
}

// 24 samples, 2 ranks, batches of 3: 4 steps an epoch.
const words small{"fit", "--batch-size", "3", "--max-epochs", "2", "--num-sanity-val-batches", "0"};

}  // namespace

TEST_CASE("a fit writes a run folder and prints its name last", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  const auto said = troupe_says(small + words{"--run-dir", run});
  CAPTURE(said.err);
  CHECK(said.code == 0);
  CHECK_THAT(said.out, Catch::EndsWith("run folder " + run + "\n"));
  const auto result = result_of(run);
  CHECK(result["status"] == "finished");
  CHECK(result["epochs"] == 2);
  CHECK(result["steps"] == 8);
  CHECK(result["samples"] == 48);
  CHECK(result["ranks"] == 2);
  CHECK(result["failure"].is_null());
  CHECK_THAT(read_text(fs::path{run} / "config.toml"), Catch::Contains("batch_size = 3"));
  CHECK_THAT(read_text(fs::path{run} / "metrics.csv"), Catch::StartsWith("step,epoch"));
  CHECK_THAT(read_text(fs::path{run} / "events.jsonl"), Catch::Contains("rank_started"));
}

TEST_CASE("the flag --json prints the result as one line, --quiet only the run folder", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  const auto as_json = troupe_says(small + words{"--run-dir", run, "--json"});
  CHECK(json::parse(as_json.out) == result_of(run));
  const auto quiet =
      troupe_says(small + words{"--run-dir", (place.path() / "other").string(), "--quiet"});
  CHECK(quiet.out == "run folder " + (place.path() / "other").string() + "\n");
  CHECK(quiet.err.empty());
}

TEST_CASE("a saved configuration can be run again", "[run]") {
  const temporary_folder place;
  const auto first = (place.path() / "first").string(), again = (place.path() / "again").string();
  CHECK(troupe_says(small + words{"--run-dir", first, "--seed", "5"}).code == 0);
  CHECK(troupe_says({"fit", "--config", first + "/config.toml", "--run-dir", again}).code == 0);
  CHECK(read_text(first + "/config.toml") == read_text(again + "/config.toml"));
  CHECK(result_of(first)["steps"] == result_of(again)["steps"]);
}

TEST_CASE("a fit refuses a folder that holds a run", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  CHECK(troupe_says(small + words{"--run-dir", run}).code == 0);
  const auto before = read_text(fs::path{run} / "result.json");
  const auto said = troupe_says(small + words{"--run-dir", run});
  CHECK(said.code == 3);
  CHECK_THAT(said.err, Catch::Contains("--resume latest") && Catch::Contains(run));
  CHECK(read_text(fs::path{run} / "result.json") == before);
}

TEST_CASE("an exception in a hook is exit 1 and the first cause in result.json", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  const auto said = troupe_says(small + words{"--run-dir", run, "--fault",
                                              "throw@rank=1,hook=backward,step=3,what=disk, full"});
  CHECK(said.code == 1);
  CHECK_THAT(said.err,
             Catch::Contains("rank 1 failed in backward") && Catch::Contains("disk, full"));
  const auto result = result_of(run);
  CHECK(result["status"] == "failed");
  CHECK(result["failure"]["type"] == "troupe::injected_fault");
  CHECK(result["failure"]["what"] == "disk, full");
  CHECK(result["failure"]["rank"] == 1);
  CHECK(result["failure"]["hook"] == "backward");
  CHECK(result["failure"]["step"] == 3);
}

TEST_CASE("an exception in any hook of any rank is the first cause", "[run]") {
  const temporary_folder place;
  const auto trace = (place.path() / "trace").string();
  const auto traced = (place.path() / "traced").string();
  const words all{
      "fit", "--batch-size",        "3", "--limit-train-batches",    "2", "--max-epochs",
      "1",   "--gradient-clip-val", "1", "--num-sanity-val-batches", "1"};
  REQUIRE(troupe_says(all + words{"--run-dir", traced, "--trace-hooks", trace}).code == 0);
  std::set<std::pair<int, std::string>> hooks;
  std::istringstream lines{read_text(trace)};
  for (std::string line; std::getline(lines, line);) {
    const auto entry = json::parse(line);
    hooks.emplace(entry["rank"].get<int>(), entry["hook"].get<std::string>());
  }
  CHECK(hooks.size() > 70);
  for (const auto& [rank, hook] : hooks) {
    CAPTURE(rank, hook);
    const auto run = (place.path() / (hook + std::to_string(rank))).string();
    const auto fault = "throw@rank=" + std::to_string(rank) + ",hook=" + hook + ",what=drill";
    CHECK(troupe_says(all + words{"--run-dir", run, "--fault", fault}).code == 1);
    const auto failure = result_of(run)["failure"];
    CHECK(failure["what"] == "drill");
    CHECK(failure["rank"] == rank);
    CHECK(failure["hook"] == hook);
  }
}

TEST_CASE("a user_error thrown in a hook decides the exit code", "[run]") {
  const temporary_folder place;
  integer_options options;
  options.at_hook = [](const learner_context&, const hook& what) {
    if (what.is<hooks::prepare_data>())
      throw user_error(errc::bad_configuration, "the data set is not there; install it");
  };
  const auto said =
      troupe_says(small + words{"--run-dir", (place.path() / "run").string()}, {}, options);
  CHECK(said.code == 3);
  CHECK_THAT(said.err, Catch::Contains("install it"));
}

TEST_CASE("an unusable communicator is exit 6, and the error names a usable one", "[run]") {
  const temporary_folder place;
  const auto said = troupe_says(
      small + words{"--run-dir", (place.path() / "run").string(), "--communicator", "nccl"});
  CHECK(said.code == 6);
  CHECK_THAT(said.err, Catch::Contains("--communicator auto"));
}

TEST_CASE("SIGTERM in a step: the fit stops after the step, exit 143, names --resume", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  integer_options options;
  options.at_hook = [](const learner_context& context, const hook& what) {
    if (context.rank == 0 && what.is<hooks::backward>() && where(what).step == 2)
      ::kill(::getpid(), SIGTERM);
  };
  const auto said = troupe_says(
      words{"fit", "--batch-size", "3", "--max-epochs", "100000", "--run-dir", run}, {}, options);
  CAPTURE(said.err);
  CHECK(said.code == 143);
  CHECK_THAT(said.err, Catch::Contains("SIGTERM") && Catch::Contains("--resume latest"));
  CHECK(result_of(run)["status"] == "stopped");
  CHECK(result_of(run)["steps"] >= 3);
}

TEST_CASE("without checkpoints: none is written, and a resume begins anew", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  const auto said = troupe_says(small + words{"--run-dir", run, "--no-enable-checkpointing"});
  CAPTURE(said.err);
  CHECK(said.code == 0);
  CHECK(result_of(run)["steps"] == 8);
  CHECK(result_of(run)["weights_digest"] != "");
  CHECK_FALSE(fs::exists(fs::path{run} / "checkpoints"));
  const auto again = troupe_says(small + words{"--run-dir", run, "--resume", "latest"});
  CHECK(again.code == 0);
  CHECK(result_of(run)["steps"] == 8);
}

TEST_CASE("without a limit on epochs a fit ends by its steps", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  const auto said =
      troupe_says(small + words{"--run-dir", run, "--max-epochs", "-1", "--max-steps", "10"});
  CAPTURE(said.err);
  CHECK(said.code == 0);
  CHECK(result_of(run)["epochs"] == 2);
  CHECK(result_of(run)["steps"] == 10);
  CHECK_THAT(said.err, !Catch::Contains("/-1"));
}

TEST_CASE("status reports a finished and an interrupted run", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  CHECK(troupe_says(small + words{"--run-dir", run}).code == 0);
  auto status = json::parse(troupe_says({"status", run, "--json"}).out);
  CHECK(status["schema"] == "troupe.status/1");
  CHECK(status["state"] == "finished");
  CHECK(status["result"]["steps"] == 8);
  CHECK(status["last_event"].contains("event"));
  fs::remove(fs::path{run} / "result.json");
  status = json::parse(troupe_says({"status", run, "--json"}).out);
  CHECK(status["state"] == "interrupted");
}

TEST_CASE("a hook trace has entries of each rank", "[run]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string(), trace = run + "/trace.jsonl";
  CHECK(troupe_says(small + words{"--run-dir", run, "--trace-hooks", trace}).code == 0);
  const auto text = read_text(trace);
  CHECK_THAT(text, Catch::StartsWith("{\"rank\":"));
  CHECK_THAT(text,
             Catch::Contains("{\"rank\":1,\"stage\":\"train\",\"hook\":\"on_train_batch_start\","
                             "\"epoch\":1,\"step\":7,\"batch\":3}\n"));
}
