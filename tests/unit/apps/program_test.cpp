// Goal: commands that run no job print to the right stream and have the right exit codes.
#include "apps/troupe/commands.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

TEST_CASE("the flag --help prints examples and --version a number, both on standard output",
          "[program]") {
  const auto help = troupe_says({"--help"});
  CHECK(help.code == 0);
  CHECK_THAT(help.out, Catch::Contains("Examples:") && Catch::Contains("troupe fit"));
  CHECK(help.err.empty());
  const auto fit = troupe_says({"fit", "--help"});
  CHECK(fit.code == 0);
  CHECK_THAT(fit.out, Catch::Contains("--max-epochs") && Catch::Contains("troupe fit"));
  CHECK_THAT(troupe_says({"--version"}).out, Catch::Contains("troupe 0."));
}

TEST_CASE("bad usage is exit 2 with a suggestion on standard error", "[program]") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> stories{
      {{}, "troupe --help"},
      {{"fitt"}, "did you mean \"fit\"?"},
      {{"fit", "--max-epoch", "3"}, "did you mean \"--max-epochs\"?"},
      {{"fit", "--ranks"}, "--ranks"},
      {{"fit", "--ranks", "two"}, "an integer is needed"},
      {{"data"}, "data"},
      {{"data", "odrer"}, "did you mean \"order\"?"},
      {{"data", "order"}, "--size"},
      {{"data", "order", "--size", "many"}, "--size"},
      {{"checkpoint", "inspect"}, "PATH"},
      {{"checkpoint", "export", "x", "--format", "onnx", "--output", "y"}, "torch, safetensors"},
      {{"models", "--jsn"}, "did you mean \"--json\"?"},
      {{"test"}, "--run-dir"},
      {{"fit", "--set", "ranks"}, "KEY=VALUE"},
  };
  for (const auto& [arguments, part] : stories) {
    CAPTURE(arguments);
    const auto said = troupe_says(arguments);
    CHECK(said.code == 2);
    CHECK(said.out.empty());
    CHECK_THAT(said.err, Catch::StartsWith("error: ") && Catch::Contains(part));
  }
}

TEST_CASE("bad configuration is exit 3 and names the cause", "[program]") {
  const temporary_folder folder;
  const auto run = (folder.path() / "run").string();
  const std::vector<std::pair<std::vector<std::string>, std::string>> stories{
      {{"fit", "--run-dir", run, "--ranks", "0"}, "ranks"},
      {{"fit", "--run-dir", run, "--model", "mpl"}, "did you mean \"mlp\"?"},
      {{"fit", "--run-dir", run, "--set", "model.hiden=[1]"}, "did you mean \"model.hidden\"?"},
      {{"fit", "--run-dir", run, "--placement", "simulated"}, "--placement threads"},
      {{"fit", "--run-dir", run, "--fault", "throw@rank=7,hook=setup"}, "rank of a fault is 7"},
      {{"fit", "--run-dir", run, "--config", run + ".toml"}, "run.toml"},
      {{"config", "validate", run + ".toml"}, "run.toml"},
      {{"status", run}, "holds no run"},
      {{"data", "order", "--size", "10", "--ranks", "0"}, "--ranks"},
      {{"fit", "--run-dir", "/proc/absent"}, "--run-dir"},
  };
  for (const auto& [arguments, part] : stories) {
    CAPTURE(arguments);
    const auto said = troupe_says(arguments);
    CHECK(said.code == 3);
    CHECK_THAT(said.err, Catch::Contains(part));
    CHECK_FALSE(std::filesystem::exists(run));
  }
}

TEST_CASE("a missing checkpoint is exit 5, an unsupported device is exit 6", "[program]") {
  const temporary_folder folder;
  const auto run = (folder.path() / "run").string();
  CHECK(troupe_says({"checkpoint", "inspect", run}).code == 5);
  CHECK(troupe_says({"checkpoint", "verify", run}).code == 5);
  CHECK(troupe_says({"fit", "--resume", run}).code == 5);
  CHECK(troupe_says({"fit", "--resume", "latest", "--run-dir", run}).code == 5);
  CHECK(troupe_says({"test", "--run-dir", run}).code == 5);
  CHECK(troupe_says({"fit", "--run-dir", run, "--init-weights", run}).code == 5);
  CHECK(troupe_says({"fit", "--run-dir", run, "--accelerator", "cuda"}).code == 6);
  CHECK(troupe_says({"fit", "--run-dir", run, "--devices", "2"}).code == 6);
  CHECK_FALSE(std::filesystem::exists(run));
}

TEST_CASE("data order lists each sample once, by step and rank", "[program]") {
  const auto said =
      troupe_says({"data", "order", "--size", "23", "--ranks", "3", "--batch-size", "4", "--seed",
                   "7", "--epoch", "2", "--accumulate-grad-batches", "2", "--json"});
  CHECK(said.code == 0);
  const auto lines = lines_of(said.out);
  REQUIRE(lines.size() == 2 * 3);
  std::set<int> seen;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(lines[i]["schema"] == "troupe.data_order/1");
    CHECK(lines[i]["batch"] == i / 3);
    CHECK(lines[i]["rank"] == i % 3);
    CHECK(lines[i]["step"] == 2);  // two epochs of one step each lie before
    for (const int sample : lines[i]["samples"]) CHECK(seen.insert(sample).second);
  }
  CHECK(seen.size() == 23);
  CHECK(lines[5]["samples"].size() == 3);
}

TEST_CASE("data order prints an empty line for an idle rank, and none for no samples",
          "[program]") {
  const auto lines =
      lines_of(troupe_says({"data", "order", "--size", "1", "--ranks", "2", "--json"}).out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["samples"] == json({0}));
  CHECK(lines[1]["samples"] == json::array());
  CHECK(troupe_says({"data", "order", "--size", "0", "--json"}).out.empty());
}

TEST_CASE("steps in data order do not accumulate batches of two epochs", "[program]") {
  std::map<std::int64_t, std::int64_t> batches;
  program::data_order({.size = 50, .ranks = 1, .batch_size = 10, .epoch = 1, .accumulate = 2},
                      [&](const program::ordered_batch& b) { ++batches[b.step]; });
  CHECK(batches == std::map<std::int64_t, std::int64_t>{{3, 2}, {4, 2}, {5, 1}});
}

TEST_CASE("data order of a history consumes each sample once", "[program]") {
  const auto lines =
      lines_of(troupe_says({"data", "order", "--size", "50", "--ranks", "1", "--batch-size", "9",
                            "--after", "3@2x4", "--after", "1@3x2", "--epoch", "1", "--json"})
                   .out);
  std::set<int> seen;
  std::vector<int> sizes;
  for (const auto& line : lines) {
    for (const int sample : line["samples"]) CHECK(seen.insert(sample).second);
    sizes.push_back(static_cast<int>(line["samples"].size()));
  }
  CHECK(seen.size() == 50);
  CHECK(sizes == std::vector<int>{4, 4, 4, 4, 4, 4, 2, 2, 2, 9, 9, 2});
  CHECK(lines.back()["batch"] == 6);
  CHECK(lines.back()["step"] == 7 + 6);  // an epoch of 7 steps lies before
  const auto wrong = troupe_says({"data", "order", "--size", "5", "--after", "3x2"});
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err, Catch::Contains("BATCHES@RANKSxBATCH_SIZE"));
}

TEST_CASE("data order has the limit on batches of a fit, and its order with overfit_batches",
          "[program]") {
  const auto order = [](std::vector<std::string> more) {
    std::vector<std::string> all{"data", "order",        "--size", "23",      "--ranks",
                                 "2",    "--batch-size", "3",      "--epoch", "3"};
    all.insert(all.end(), more.begin(), more.end());
    const auto said = troupe_says(all);
    CAPTURE(all, said.err);
    CHECK(said.code == 0);
    return said.out;
  };
  const std::string overfit =
      "step 6 batch 0 rank 0: 0 1 2\nstep 6 batch 0 rank 1: 3 4 5\n"
      "step 7 batch 1 rank 0: 6 7 8\nstep 7 batch 1 rank 1: 9 10 11\n";
  CHECK(order({"--overfit-batches", "2"}) == overfit);
  CHECK(order({"--overfit-batches", "0.5"}) == overfit);  // of 4 batches
  CHECK(order({"--overfit-batches", "2", "--limit-train-batches", "1"}) == overfit);
  CHECK(order({"--overfit-batches", "2", "--after", "1@2x3"}) == overfit);
  // A limit alone takes the first batches of the same order; earlier epochs were limited, too.
  const auto whole = order({});
  const auto first = order({"--limit-train-batches", "1"});
  const auto samples = [](const std::string& text) { return text.substr(text.find(" batch 0 ")); };
  CHECK_THAT(first, Catch::StartsWith("step 3 batch 0 rank 0: "));
  CHECK_THAT(whole, Catch::StartsWith("step 12 batch 0 rank 0: "));
  CHECK(samples(first).substr(0, samples(first).find('\n')) ==
        samples(whole).substr(0, samples(whole).find('\n')));
  CHECK(std::ranges::count(first, '\n') == 2);
  CHECK(order({"--overfit-batches", "0"}) == whole);
  const auto wrong = troupe_says({"data", "order", "--size", "5", "--overfit-batches", "1.5"});
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err, Catch::Contains("--overfit-batches"));
}

TEST_CASE("config print shows values and sources, and its output is a valid file", "[program]") {
  const temporary_folder folder;
  const auto said = troupe_says({"config", "print", "--ranks", "3"}, {{"TROUPE_BATCH_SIZE", "7"}});
  CHECK(said.code == 0);
  CHECK_THAT(said.out,
             Catch::Contains("flag --ranks") && Catch::Contains("variable TROUPE_BATCH_SIZE"));
  const auto file = (folder.path() / "job.toml").string();
  write_text(file, said.out);
  CHECK(troupe_says({"config", "validate", file}).code == 0);
  const auto again = json::parse(troupe_says({"config", "print", "--config", file, "--json"}).out);
  CHECK(again["settings"]["ranks"]["value"] == 3);
  CHECK(again["settings"]["batch_size"]["value"] == 7);
}

TEST_CASE("config validate lists all errors", "[program]") {
  const temporary_folder folder;
  const auto file = (folder.path() / "job.toml").string();
  write_text(file, "ranks = 0\nmodle = 'mlp'\nseed = 'x'\n");
  const auto said = troupe_says({"config", "validate", file, "--json"});
  CHECK(said.code == 3);
  const auto object = json::parse(said.out);
  CHECK(object["schema"] == "troupe.config_validation/1");
  CHECK(object["valid"] == false);
  CHECK(object["errors"].size() == 3);
}

TEST_CASE("config validate finds values that no fit takes", "[program]") {
  const temporary_folder folder;
  const auto file = (folder.path() / "job.toml").string();
  for (const auto& [text, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"placement = 'threads'\n[elastic]\nspares = 1\n", "elastic.spares is 1"},
           {"placement = 'processes'\n[elastic]\nspares = 1\n", "raise elastic.max_restarts"},
           {"max_time = 'long'\n", "max_time"},
           {"[time]\ndetect_seconds = 10\nhook_limit_seconds = 10\n", "time.hook_limit_seconds"},
           {"placement = 'simulated'\n", "placement"}}) {
    write_text(file, text);
    const auto said = troupe_says({"config", "validate", file});
    CHECK(said.code == 3);
    CHECK_THAT(said.err, Catch::Contains(part));
  }
}

TEST_CASE("models, doctor and config schema print JSON with a schema name", "[program]") {
  const auto models = lines_of(troupe_says({"models", "--json"}).out);
  REQUIRE(models.size() == 2);
  CHECK(models[0]["schema"] == "troupe.model/1");
  CHECK(models[0]["name"] == "mlp");
  CHECK(models[0]["parameters"] == 4);

  const auto doctor = json::parse(troupe_says({"doctor", "--json"}).out);
  CHECK(doctor["schema"] == "troupe.doctor/1");
  CHECK(doctor["cores"] >= 1);
  CHECK(doctor["cluster_environment"]["name"] == "local");
  CHECK(doctor["versions"].contains("caf"));
  std::map<std::string, bool> available;
  for (const auto& one : doctor["communicators"]) {
    available[one["name"]] = one["available"];
    CHECK_FALSE(one["why"].get<std::string>().empty());
  }
  CHECK(available.at("inproc"));
  CHECK(available.contains("nccl"));
  CHECK(doctor["problems"].dump().find("/absent/data") != std::string::npos);

  CHECK(json::parse(troupe_says({"config", "schema"}).out)["type"] == "object");
}

TEST_CASE("doctor names the launcher's environment, and lists one that is broken as a problem",
          "[program]") {
  const auto found = [](const std::map<std::string, std::string>& variables) {
    return json::parse(troupe_says({"doctor", "--json"}, variables).out);
  };
  const auto torchrun = found({{"TORCHELASTIC_RUN_ID", "x"},
                               {"WORLD_SIZE", "8"},
                               {"RANK", "5"},
                               {"LOCAL_RANK", "1"},
                               {"GROUP_RANK", "2"}});
  CHECK(torchrun["cluster_environment"] == json{{"name", "torchelastic"},
                                                {"why", "TORCHELASTIC_RUN_ID is set"},
                                                {"rank", 5},
                                                {"world", 8},
                                                {"local_rank", 1},
                                                {"node_rank", 2}});
  CHECK(torchrun["problems"].dump().find("environment") == std::string::npos);

  const auto broken = found({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "5"}, {"SLURM_LOCALID", "0"}});
  const std::string why = "the slurm environment cannot be used: it says rank 5 of 2";
  CHECK(broken["cluster_environment"] == json{{"name", "local"}, {"why", why}});
  CHECK(std::ranges::count(broken["problems"], json(why)) == 1);
}

TEST_CASE("an unknown variable TROUPE_RANK: the command warns and names a similar one",
          "[program]") {
  const temporary_folder folder;
  const auto run = (folder.path() / "run").string();
  const auto said =
      troupe_says({"fit", "--run-dir", run, "--max-steps", "0"}, {{"TROUPE_RANK", "1"}});
  CHECK_THAT(said.err, Catch::Contains("TROUPE_RANK") && Catch::Contains("TROUPE_RANKS"));
}

TEST_CASE("config print and tune say what has no effect, as fit does", "[program]") {
  const std::map<std::string, std::string> wrong{{"TROUPE_LEARNIG_RATE", "1"}};
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"config", "print"}, {"tune", "batch-size", "--trials", "1"}}) {
    INFO(command.front());
    const auto said = troupe_says(command, wrong);
    CHECK(said.code == 0);
    CHECK_THAT(said.err, Catch::Contains("the variable TROUPE_LEARNIG_RATE names no setting"));
    auto quiet = command;
    quiet.emplace_back("--quiet");
    CHECK_THAT(troupe_says(quiet, wrong).err, !Catch::Contains("names no setting"));
  }
}

TEST_CASE("the number of connections over tcp has a flag", "[program]") {
  const auto said = troupe_says({"config", "print", "--tcp-streams", "4", "--json"});
  REQUIRE(said.code == 0);
  const json expected{{"value", 4}, {"from", "flag --tcp-streams"}};
  CHECK(lines_of(said.out).front()["settings"]["tcp.streams"] == expected);
}

TEST_CASE("simulate with the same seeds runs the same simulations", "[program]") {
  const std::vector<std::string> arguments{"simulate", "--ranks", "3",       "--steps", "4",
                                           "--seeds",  "5..9",    "--swarm", "--json"};
  const auto first = troupe_says(arguments);
  INFO(first.err);
  REQUIRE(first.code == 0);
  const auto said = lines_of(first.out).back();
  CHECK(said["runs"] == 5);
  CHECK(said["violations"] == 0);
  CHECK(said["marks"].size() > 3);
  const auto again = lines_of(troupe_says(arguments).out).back();
  CHECK(again["trace_digest"] == said["trace_digest"]);
  const auto one = lines_of(troupe_says({"simulate", "--json"}).out).back();
  CHECK(one["weights_digest"].is_string());
  for (const auto& wrong : std::vector<std::vector<std::string>>{{"--payload", "clay"},
                                                                 {"--scheduler", "lifo"},
                                                                 {"--faults", "rain"},
                                                                 {"--seeds", "3"}}) {
    auto bad = wrong;
    bad.insert(bad.begin(), "simulate");
    CHECK(troupe_says(bad).code == 2);
  }
}
