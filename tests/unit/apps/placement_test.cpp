// Goal: the command line runs ranks as processes with the results, the trace and the exit codes of
// threads.
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <sstream>

#include "apps/troupe/recipe_text.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

std::string text_in(const std::filesystem::path& file) {
  std::ifstream in{file};
  return {std::istreambuf_iterator<char>{in}, {}};
}

struct placed_fit {
  explicit placed_fit(const std::string& placement, std::vector<std::string> more = {}) {
    std::vector<std::string> all{"fit",     "--run-dir",     run(),   "--placement",
                                 placement, "--trace-hooks", trace(), "--ranks",
                                 "3",       "--batch-size",  "2",     "--max-epochs",
                                 "2",       "--progress",    "never"};
    all.insert(all.end(), more.begin(), more.end());
    ended = troupe_says(all);
  }
  std::string run() const { return (folder.path() / "run").string(); }
  std::string trace() const { return (folder.path() / "trace.jsonl").string(); }
  json result() const { return json::parse(text_in(folder.path() / "run" / "result.json")); }
  // The trace keeps the order of one rank's hooks; the order between ranks varies.
  std::vector<std::string> trace_of(int rank) const {
    std::vector<std::string> lines;
    std::istringstream in{text_in(trace())};
    for (std::string line; std::getline(in, line);)
      if (json::parse(line)["rank"] == rank) lines.push_back(line);
    return lines;
  }

  temporary_folder folder;
  said ended;
};

}  // namespace

TEST_CASE("ranks as processes give the result and the hook traces of threads", "[program]") {
  const placed_fit threads("threads");
  REQUIRE(threads.ended.code == 0);
  for (const std::string by : {"auto", "shm", "tcp", "hier"}) {
    INFO(by);
    const placed_fit processes("processes", {"--communicator", by});
    INFO(processes.ended.err);
    REQUIRE(processes.ended.code == 0);
    for (const auto* field : {"status", "epochs", "steps", "samples", "metrics", "weights_digest"})
      CHECK(processes.result()[field] == threads.result()[field]);
    CHECK(processes.result()["seconds"]["to_first_step"].get<double>() > 0);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK_FALSE(threads.trace_of(rank).empty());
      CHECK(processes.trace_of(rank) == threads.trace_of(rank));
    }
    CHECK(text_in(processes.run() + "/metrics.csv") == text_in(threads.run() + "/metrics.csv"));
  }
}

TEST_CASE("a killed rank gives exit code 1 and is named in result.json", "[program]") {
  const placed_fit killed("processes", {"--fault", "kill@rank=1,hook=backward,step=2"});
  CHECK(killed.ended.code == 1);
  CHECK_THAT(killed.ended.err, Catch::Contains("rank 1 failed in backward at step 2"));
  const auto failure = killed.result()["failure"];
  CHECK(failure["type"] == "signal");
  CHECK(failure["signal"] == "SIGKILL");
  CHECK(failure["rank"] == 1);
  CHECK(failure["hook"] == "backward");
  CHECK(failure["step"] == 2);
  const auto last = json::parse(killed.trace_of(1).back());
  CHECK(last["hook"] == "backward");
  CHECK(last["step"] == 2);
}

TEST_CASE("ranks as processes with the inproc communicator are refused", "[program]") {
  const placed_fit refused("processes", {"--communicator", "inproc"});
  CHECK(refused.ended.code == 6);
  CHECK_THAT(refused.ended.err, Catch::Contains("auto, shm, tcp, hier"));
}

TEST_CASE("the description of a learner survives the conversion to text and back", "[program]") {
  program::learning what;
  what.model = "mlp";
  what.hidden = {256, 128};
  what.dropout = 0.1;
  what.data_folder = "/a \"b\"";
  what.evaluation_samples = -1;
  what.learning_rate = 1.0 / 3;
  what.target = "b";
  what.scheduler = "cosine";
  what.epochs = 7;
  what.callbacks = {"ema,decay=0.5", "lr_monitor"};
  what.model_settings = {{"bias", false},
                         {"hidden", std::int64_t{1} << 60},
                         {"rate", 1.0},
                         {"kind", std::string{"a b"}},
                         {"widths", std::vector<std::int64_t>{3, -4}}};
  what.data_settings = {{"files", std::vector<std::string>{"1", "b"}}};
  what.classes = 3;
  what.searches = true;
  const auto back = program::read_recipe_text(program::recipe_text(what));
  CHECK(back.model == what.model);
  CHECK(back.hidden == what.hidden);
  CHECK(back.dropout == what.dropout);
  CHECK(back.data_folder == what.data_folder);
  CHECK(back.evaluation_samples == what.evaluation_samples);
  CHECK(back.learning_rate == what.learning_rate);
  CHECK(back.target == what.target);
  CHECK(back.scheduler == what.scheduler);
  CHECK(back.epochs == what.epochs);
  CHECK(back.callbacks == what.callbacks);
  CHECK(back.model_settings == what.model_settings);
  CHECK(back.data_settings == what.data_settings);
  CHECK(back.classes == what.classes);
  CHECK(back.searches);
  CHECK_THROWS_AS(program::read_recipe_text("[]"), internal_error);
  CHECK_THROWS_AS(program::read_recipe_text("mlp"), internal_error);
}
