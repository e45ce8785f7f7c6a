// Goal: settings have the right precedence, types, ranges and suggestions. The JSON schema and the
// printed configuration agree with the table of settings.
#include "actors/time_knob.hpp"
#include "apps/command_line/suggestion.hpp"
#include "apps/troupe/config_text.hpp"
#include "apps/troupe/job_parts.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "backends/telemetry/line_file.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/small_schema.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <set>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using namespace troupe::testing;

namespace {

given flags(std::vector<given::flag_value> values) { return {{}, {}, {}, std::move(values)}; }
given assignments(std::vector<std::string> texts) { return {{}, {}, std::move(texts), {}}; }

// The text and the code of what `settled` throws.
std::pair<std::string, errc> refusal(const given& what) {
  try {
    settled(join(table(), what));
  } catch (const user_error& error) {
    return {error.what(), error.code()};
  }
  return {"nothing was refused", errc::internal};
}

std::string written(const temporary_folder& folder, const std::string& text) {
  const auto path = (folder.path() / "job.toml").string();
  replace_text_file(path, text);
  return path;
}

}  // namespace

TEST_CASE("a setting that no source gives has its default", "[settings]") {
  const auto s = settled(join(table(), {}));
  CHECK(s.integer("ranks") == 2);
  CHECK(s.integer("max_epochs") == 3);
  CHECK(s.text("model.name") == "mlp");
  CHECK(s.number("optimizer.learning_rate") == 0.05);
  CHECK(s.get<std::vector<std::int64_t>>("model.hidden") == std::vector<std::int64_t>{256, 128});
  CHECK_FALSE(s.is_set("max_steps"));
  CHECK(s.find<std::int64_t>("max_steps") == std::nullopt);
  CHECK_FALSE(s.is_given("ranks"));
}

TEST_CASE("a strategy can be given as a name or as a table", "[settings]") {
  CHECK(settled(join(table(), assignments({"strategy=data_parallel"}))).text("strategy.name") ==
        "data_parallel");
  const auto s = settled(
      join(table(), assignments({"strategy.fused_step=true", "strategy.bucket_cap_mb=25"})));
  CHECK(s.find<bool>("strategy.fused_step") == true);
  CHECK(s.number("strategy.bucket_cap_mb") == 25);
  CHECK(s.text("strategy.comm_hook") == "allreduce");
  CHECK(settled(join(table(), {})).find<bool>("strategy.fused_step") == std::nullopt);
  CHECK(mentions(refusal(assignments({"strategy.comm_hook=f16"})).first, "f16_compress"));
}

TEST_CASE("each setting of the gradient exchange reaches the trainer's options", "[settings]") {
  const auto gradients_of = [](const given& what) {
    return options_of(settled(join(table(), what))).gradients;
  };
  CHECK(gradients_of({}) == gradient_options{});
  const temporary_folder folder;
  // One at a time, so that no setting hides the effect of another.
  const std::pair<const char*, gradient_options> each[] = {
      {"bucket_cap_mb=0.5", {.bucket_cap_mb = 0.5}},
      {"overlap=false", {.overlap = false}},
      {"find_unused_parameters=true", {.find_unused_parameters = true}},
      {"static_graph=true", {.static_graph = true}},
      {"comm_hook=\"bf16_compress\"", {.comm_hook = comm_hook_kind::bf16_compress}},
      {"comm_hook=\"powersgd\"", {.comm_hook = comm_hook_kind::powersgd}},
      {"powersgd.rank=4", {.powersgd = {.rank = 4}}},
      {"powersgd.start_step=7", {.powersgd = {.start_step = 7}}},
      {"powersgd.min_rate=0.5", {.powersgd = {.min_rate = 0.5}}},
      {"powersgd.error_feedback=false", {.powersgd = {.error_feedback = false}}},
      {"powersgd.warm_start=false", {.powersgd = {.warm_start = false}}},
      {"powersgd.epsilon=1e-8", {.powersgd = {.epsilon = 1e-8}}},
      {"powersgd.seed=9", {.powersgd = {.seed = 9}}},
      {"fused_step=false", {.fused_step = false}},
      {"broadcast_buffers=false", {.broadcast_buffers = false}},
      {"sync_module_states=false", {.sync_module_states = false}}};
  for (const auto& [text, expected] : each) {
    CAPTURE(text);
    CHECK(gradients_of(assignments({"strategy." + std::string{text}})) == expected);
    given file;
    file.files = {written(folder, "[strategy]\n" + std::string{text} + "\n")};
    CHECK(gradients_of(file) == expected);
  }
}

TEST_CASE("tcp.streams outside of its bounds is refused", "[settings]") {
  CHECK(options_of(settled(join(table(), {}))).tcp_streams == std::nullopt);
  CHECK(options_of(settled(join(table(), assignments({"tcp.streams=4"})))).tcp_streams == 4);
  CHECK(mentions(refusal(assignments({"tcp.streams=0"})).first, "tcp.streams"));
  CHECK(mentions(refusal(assignments({"tcp.streams=17"})).first, "16"));
}

TEST_CASE("truncated_bptt_steps reaches the trainer's options", "[settings]") {
  const given what = flags({{"truncated_bptt_steps", "--truncated-bptt-steps", {"20"}}});
  CHECK(options_of(settled(join(table(), what))).truncated_bptt_steps == 20);
  CHECK(options_of(settled(join(table(), {}))).truncated_bptt_steps == 0);
  CHECK(mentions(refusal(assignments({"truncated_bptt_steps=-1"})).first, "truncated_bptt_steps"));
}

TEST_CASE("a schedule of accumulation is read from one text", "[settings]") {
  const auto schedule = [](const std::string& text) {
    const auto what = flags({{"accumulate_schedule", "--accumulate-schedule", {text}}});
    return options_of(settled(join(table(), what))).accumulate_schedule;
  };
  CHECK(schedule("4:2") == std::map<std::int64_t, std::int64_t>{{4, 2}});
  CHECK(schedule("8:1,0:4") == std::map<std::int64_t, std::int64_t>{{0, 4}, {8, 1}});
  for (const auto* text : {"4", "4:", ":2", "4:x", "4:2;8:1", "4:2,4:3", " 4:2"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(schedule(text), Catch::Contains("write EPOCH:BATCHES"));
  }
}

TEST_CASE("checkpoint.on_exception needs checkpoints", "[settings]") {
  const auto saves = [](std::vector<std::string> texts) {
    return options_of(settled(join(table(), assignments(std::move(texts))))).checkpoint;
  };
  CHECK(saves({"checkpoint.on_exception=true"}).on_exception);
  CHECK_FALSE(saves({"checkpoint.on_exception=true", "enable_checkpointing=false"}).on_exception);
}

TEST_CASE("settings of a fit's length and validations reach the trainer's options", "[settings]") {
  const auto s = settled(join(
      table(), assignments({"max_epochs=-1", "min_epochs=2", "min_steps=30", "max_time=01:00:02:03",
                            "overfit_batches=4", "check_val_every_n_epoch=0",
                            "num_sanity_val_steps=-1", "enable_checkpointing=false"})));
  const auto o = options_of(s);
  CHECK(o.max_epochs == -1);
  CHECK(o.min_epochs == 2);
  CHECK(o.min_steps == 30);
  CHECK(o.max_time == std::chrono::hours{24} + std::chrono::seconds{123});
  CHECK(o.overfit_batches == batch_limit{std::int64_t{4}});
  CHECK(o.check_val_every_n_epoch == 0);
  CHECK(o.num_sanity_val_steps == -1);
  CHECK_FALSE(o.checkpoint.every_epoch);
  CHECK(options_of(settled(join(table(), {}))) == trainer_options{});
}

TEST_CASE("the switches of LibTorch reach the trainer's options", "[settings]") {
  const auto of = [](std::vector<std::string> texts) {
    return options_of(settled(join(table(), assignments(std::move(texts)))));
  };
  CHECK(of({"detect_anomaly=true"}).detect_anomaly);
  CHECK(of({"deterministic=true"}).deterministic == deterministic_kind::on);
  CHECK(of({"deterministic=false"}).deterministic == deterministic_kind::off);
  CHECK(of({"deterministic=warn"}).deterministic == deterministic_kind::warn);
  CHECK(of({"benchmark=false"}).benchmark == false);
  CHECK_FALSE(of({"inference_mode=false"}).inference_mode);
  CHECK(mentions(refusal(assignments({"deterministic=perhaps"})).first, "false, true, warn"));
  CHECK(refusal(assignments({"strategy.name=true"})).second == errc::bad_configuration);
}

TEST_CASE("a time of another form is refused with the right form", "[settings]") {
  for (const std::string wrong :
       {"90", "1:00:00", "00:1:00:00", "00:00:00:00", "00:00:00:1x", "00:00:00:00:01",
        "-1:00:00:01", "00:00:00:", "0000000000:00:00:01"}) {
    CAPTURE(wrong);
    const auto s = settled(join(table(), assignments({"max_time=\"" + wrong + "\""})));
    CHECK_THROWS_WITH(options_of(s), Catch::Contains("max_time = \"" + wrong + "\"") &&
                                         Catch::Contains("DD:HH:MM:SS"));
  }
}

TEST_CASE("the former name of a setting is read from files and variables", "[settings]") {
  const temporary_folder folder;
  given file;
  file.files = {written(folder, "num_sanity_val_batches = 5\n")};
  CHECK(settled(join(table(), file)).integer("num_sanity_val_steps") == 5);
  given variable;
  variable.variables = {{"TROUPE_NUM_SANITY_VAL_BATCHES", "6"}};
  const auto read = join(table(), variable);
  CHECK(read.notes.empty());
  CHECK(settled(read).integer("num_sanity_val_steps") == 6);
  variable.variables = {{"TROUPE_NUM_SANITY_VAL_STEPS", "7"}};
  CHECK(settled(join(table(), variable)).integer("num_sanity_val_steps") == 7);
}

TEST_CASE("elastic settings of any source: the job's options have them", "[settings]") {
  const auto options = [](const given& what) {
    return options_of(settled(join(table(), what))).elastic;
  };
  constexpr auto fail = elastic_options::on_exception::fail;
  CHECK(options({}) == elastic_options{});
  CHECK(options(flags({{"elastic.max_restarts", "--max-restarts", {"10"}}})).max_restarts == 10);
  CHECK(options({{}, {{"TROUPE_MAX_RESTARTS", "4"}}, {}, {}}).max_restarts == 4);
  CHECK(options({{}, {{"TROUPE_ELASTIC_EXCEPTIONS", "fail"}}, {}, {}}).exceptions == fail);
  CHECK(options(assignments({"elastic.max_restarts=2147483647"})).max_restarts == 2147483647);
  const temporary_folder folder;
  given file;
  file.files = {written(folder, "[elastic]\nmax_restarts = 3\nexceptions = \"fail\"\n")};
  CHECK(options(file) == elastic_options{.max_restarts = 3, .exceptions = fail});
  const auto saved = saved_configuration(settled(join(table(), file)));
  CHECK(mentions(saved, "[elastic]\nmax_restarts = 3\nexceptions = \"fail\"\n"));
}

TEST_CASE("impossible elastic settings: the error names the possible ones", "[settings]") {
  const auto negative = refusal(flags({{"elastic.max_restarts", "--max-restarts", {"-1"}}}));
  CHECK(negative.second == errc::bad_configuration);
  CHECK(mentions(negative.first, "elastic.max_restarts = \"-1\" (flag --max-restarts)"));
  CHECK(mentions(negative.first, "the nearest possible value is 0"));
  CHECK(mentions(refusal(assignments({"elastic.max_restarts=2147483648"})).first, "2147483647"));
  CHECK(refusal(flags({{"elastic.max_restarts", "--max-restarts", {"some"}}})).second ==
        errc::bad_usage);
  CHECK(mentions(refusal(assignments({"elastic.exceptions=restrat"})).first,
                 "did you mean \"restart\"? (one of restart, fail)"));
  CHECK(mentions(refusal(assignments({"elastic.max_restart=1"})).first,
                 "did you mean \"elastic.max_restarts\"?"));
}

TEST_CASE("precedence of sources: flag, --set, variable, file, default", "[settings]") {
  const temporary_folder folder;
  given what;
  what.files = {written(folder, "ranks = 3\nbatch_size = 3\nseed = 3\nmax_epochs = 33\n")};
  what.variables = {{"TROUPE_RANKS", "4"}, {"TROUPE_BATCH_SIZE", "4"}, {"TROUPE_SEED", "4"}};
  what.assignments = {"ranks=5", "batch_size=5"};
  what.flags = {{"ranks", "--ranks", {"6"}}};
  const auto s = settled(join(table(), what));
  CHECK(s.integer("ranks") == 6);
  CHECK(s.integer("batch_size") == 5);
  CHECK(s.integer("seed") == 4);
  CHECK(s.integer("max_epochs") == 33);
  CHECK(s.at("ranks").origin.text() == "flag --ranks");
  CHECK(s.at("batch_size").origin.text() == "--set");
  CHECK(s.at("seed").origin.text() == "variable TROUPE_SEED");
  CHECK(s.at("max_epochs").origin.text() == "file " + what.files[0] + ":4");
  CHECK(s.at("placement").origin.text() == "default");
}

TEST_CASE("a table, dotted keys and an inline table give the same settings", "[settings]") {
  const temporary_folder folder;
  for (const auto* text :
       {"[model]\nname = \"cnn\"\ndropout = 0.25\n", "model.name = \"cnn\"\nmodel.dropout = 0.25\n",
        "model = { name = \"cnn\", dropout = 0.25 }\n"}) {
    given what;
    what.files = {written(folder, text)};
    const auto s = settled(join(table(), what));
    CHECK(s.text("model.name") == "cnn");
    CHECK(s.number("model.dropout") == 0.25);
  }
  CHECK(settled(join(table(), assignments({"model=cnn"}))).text("model.name") == "cnn");
}

TEST_CASE("an assignment is parsed as TOML, and an unquoted name as a text", "[settings]") {
  const auto s = settled(
      join(table(), assignments({"model.hidden=[1024,1024]", "model.dropout=0.2",
                                 "optimizer.name=adam", "checkpoint.monitor=\"val/accuracy\"",
                                 "checkpoint.every_epoch=false", "optimizer.momentum=1"})));
  CHECK(s.get<std::vector<std::int64_t>>("model.hidden") == std::vector<std::int64_t>{1024, 1024});
  CHECK(s.number("model.dropout") == 0.2);
  CHECK(s.text("optimizer.name") == "adam");
  CHECK(s.text("checkpoint.monitor") == "val/accuracy");
  CHECK_FALSE(s.flag("checkpoint.every_epoch"));
  CHECK(s.number("optimizer.momentum") == 1.0);
}

TEST_CASE("an assignment of digits to a setting that is a text is their text", "[settings]") {
  const auto word = GENERATE(as<std::string>{}, "2024", "1.50", "true", "2026-11-21");
  const auto target = [](const std::string& value) {
    return settled(join(table(), assignments({"run_dir=" + value}))).text("run_dir");
  };
  CHECK(target(word) == word);
  CHECK(target('"' + word + '"') == word);
  CHECK(mentions(refusal(assignments({"run_dir=[1]"})).first, "between quotes"));
  const temporary_folder folder;
  given file;
  file.files = {written(folder, "run_dir = 2024\n")};
  CHECK(mentions(refusal(file).first, "between quotes"));
}

TEST_CASE("a limit is a count if it is an integer and a share if it is a fraction", "[settings]") {
  const auto limit = [](const std::string& text) {
    return settled(join(table(), flags({{"limit_val_batches", "--limit-val-batches", {text}}})))
        .at("limit_val_batches")
        .value;
  };
  CHECK(limit("10") == setting_value{std::int64_t{10}});
  CHECK(limit("0") == setting_value{std::int64_t{0}});
  CHECK(limit("1.0") == setting_value{1.0});
  CHECK(limit("0.25") == setting_value{0.25});
  const auto [text, code] =
      refusal(flags({{"limit_val_batches", "--limit-val-batches", {"12.0"}}}));
  CHECK(code == errc::bad_configuration);
  CHECK(mentions(text, "a count of batches has no point: 12"));
}

TEST_CASE("devices can be auto, a count or a list", "[settings]") {
  const auto devices = [](const std::string& text) {
    return settled(join(table(), flags({{"devices", "--devices", {text}}}))).at("devices").value;
  };
  CHECK(devices("auto") == setting_value{"auto"});
  CHECK(devices("4") == setting_value{std::int64_t{4}});
  CHECK(devices("0,2") == setting_value{std::vector<std::int64_t>{0, 2}});
  CHECK(devices("[1]") == setting_value{std::vector<std::int64_t>{1}});
  CHECK(refusal(flags({{"devices", "--devices", {"cpu"}}})).second == errc::bad_usage);
}

TEST_CASE("loggers are a list of known words, with commas in a flag", "[settings]") {
  using words = std::vector<std::string>;
  const auto loggers = [](const given& what) {
    return settled(join(table(), what)).get<words>("logger");
  };
  CHECK(loggers({}) == words{"csv"});
  CHECK(loggers(flags({{"logger", "--logger", {"csv,tensorboard"}}})) ==
        words{"csv", "tensorboard"});
  CHECK(loggers(flags({{"logger", "--logger", {"csv", "tensorboard"}}})) == words{"tensorboard"});
  CHECK(loggers(assignments({"logger=[\"tensorboard\"]"})) == words{"tensorboard"});
  CHECK(loggers(assignments({"logger=[]"})).empty());
  CHECK(loggers({{}, {{"TROUPE_LOGGER", "tensorboard,csv"}}, {}, {}}) ==
        words{"tensorboard", "csv"});
  const auto [text, code] = refusal(flags({{"logger", "--logger", {"csv,tensorbord"}}}));
  CHECK(code == errc::bad_configuration);
  CHECK(mentions(text, "no such value \"tensorbord\"; did you mean \"tensorboard\"?"));
}

TEST_CASE("the error for an unknown key suggests the most similar one", "[settings]") {
  const temporary_folder folder;
  given what;
  what.files = {written(folder, "\n[optimiser]\nlearning_rate = 0.1\n")};
  const auto [text, code] = refusal(what);
  CHECK(code == errc::bad_configuration);
  CHECK(mentions(text, "unknown key \"optimiser.learning_rate\""));
  CHECK(mentions(text, "job.toml:3"));
  CHECK(mentions(text, "did you mean \"optimizer.learning_rate\"?"));
  CHECK(mentions(refusal(assignments({"learning_rate=0.1"})).first,
                 "did you mean \"optimizer.learning_rate\"?"));
}

TEST_CASE("an impossible value: the error names key, value, source and fix", "[settings]") {
  struct story {
    std::string key, flag, value, fix;
    errc code;
  };
  const auto one = GENERATE(values<story>(
      {{"model.name", "--model", "mpl", "did you mean \"mlp\"? (one of cnn, mlp)",
        errc::bad_configuration},
       {"ranks", "--ranks", "0", "the nearest possible value is 1", errc::bad_configuration},
       {"ranks", "--ranks", "two", "an integer is needed", errc::bad_usage},
       {"ranks", "--ranks", "2.5", "an integer is needed", errc::bad_usage},
       {"optimizer.learning_rate", "--learning-rate", "nan", "finite", errc::bad_configuration},
       {"optimizer.momentum", "--momentum", "1.5", "the nearest possible value is 1",
        errc::bad_configuration},
       {"gradient_clip_val", "--gradient-clip-val", "0", "must be more than 0",
        errc::bad_configuration},
       {"run_dir", "--run-dir", "", "must not be empty", errc::bad_configuration}}));
  const auto [text, code] = refusal(flags({{one.key, one.flag, {one.value}}}));
  CAPTURE(one.key, one.value, text);
  CHECK(code == one.code);
  CHECK(mentions(text, one.key));
  CHECK(mentions(text, "\"" + one.value + "\""));
  CHECK(mentions(text, "flag " + one.flag));
  CHECK(mentions(text, one.fix));
}

TEST_CASE("the same wrong type in a file or a variable is a bad configuration", "[settings]") {
  const temporary_folder folder;
  given what;
  what.files = {written(folder, "ranks = \"two\"\n")};
  CHECK(refusal(what).second == errc::bad_configuration);
  CHECK(refusal({{}, {{"TROUPE_RANKS", "two"}}, {}, {}}).second == errc::bad_configuration);
  CHECK(refusal(assignments({"ranks=two"})).second == errc::bad_configuration);
}

TEST_CASE("values of types that no setting has are refused", "[settings]") {
  const temporary_folder folder;
  const auto text =
      GENERATE(as<std::string>{}, "ranks = 2026-11-21\n", "model.hidden = [1, \"two\"]\n",
               "ranks = { low = 1 }\n", "model.hidden = [[1]]\n", "ranks = [2]\n");
  given what;
  what.files = {written(folder, text)};
  CAPTURE(text);
  CHECK(refusal(what).second == errc::bad_configuration);
}

TEST_CASE("all errors of the settings are listed, not only the first", "[settings]") {
  const auto [text, code] = refusal(assignments({"ranks=0", "rnks=1", "model.dropout=2"}));
  CHECK(code == errc::bad_configuration);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
}

TEST_CASE("a missing or malformed file: the error names the file, line and reason", "[settings]") {
  const temporary_folder folder;
  given broken;
  broken.files = {written(folder, "ranks = 2\nseed = = 3\n")};
  CHECK(mentions(refusal(broken).first, "job.toml:2: not TOML"));
  given absent;
  absent.files = {(folder.path() / "absent.toml").string()};
  const auto [text, code] = refusal(absent);
  CHECK(code == errc::bad_configuration);
  CHECK(mentions(text, "absent.toml"));
  CHECK(mentions(text, "the command `config print`"));
}

TEST_CASE("an unknown variable causes a note, a variable of the installation does not",
          "[settings]") {
  const auto result =
      join(table(), {{}, {{"TROUPE_RANK", "2"}, {"TROUPE_TORCH", "/somewhere"}}, {}, {}});
  CHECK(result.complaints.empty());
  REQUIRE(result.notes.size() == 1);
  CHECK(mentions(result.notes[0], "TROUPE_RANK"));
  CHECK(mentions(result.notes[0], "did you mean \"TROUPE_RANKS\"?"));
}

TEST_CASE("printed settings read back as the same settings", "[settings]") {
  const temporary_folder folder;
  auto given_first = assignments({"model.hidden=[7]", "model.dropout=0.5", "max_steps=9",
                                  "data.dir='with \"quotes\" and \\'", "early_stopping.min_delta=1",
                                  "limit_val_batches=1.0", "devices=[0,1]"});
  const auto first = settled(join(table(), given_first));
  given again;
  again.files = {written(folder, printed(first, true))};
  const auto second = settled(join(table(), again));
  for (const auto& one : first.all()) {
    CAPTURE(one.key);
    CHECK(second.at(one.key).value == first.at(one.key).value);
  }
}

TEST_CASE("a saved configuration omits the settings of a single call", "[settings]") {
  const auto s = settled(join(table(), flags({{"run_dir", "--run-dir", {"there"}},
                                              {"ranks", "--ranks", {"3"}},
                                              {"fault", "--fault", {"throw@rank=0,hook=setup"}},
                                              {"json", "--json", {"1"}}})));
  const auto text = saved_configuration(s);
  CHECK(mentions(text, "ranks = 3\n"));
  for (const auto* left_out : {"run_dir", "fault", "json", "resume", "max_steps"})
    CHECK_FALSE(mentions(text, left_out));
}

TEST_CASE("config print --json has the source of each value", "[settings]") {
  const auto s = settled(join(table(), flags({{"ranks", "--ranks", {"3"}}})));
  const auto json = nlohmann::json::parse(printed_json(s));
  CHECK(json["schema"] == "troupe.config/1");
  CHECK(json["settings"]["ranks"]["value"] == 3);
  CHECK(json["settings"]["ranks"]["from"] == "flag --ranks");
  CHECK(json["settings"]["max_steps"]["value"].is_null());
}

TEST_CASE("in the table of settings defaults pass their checks and names are distinct",
          "[settings]") {
  std::set<std::string> keys, variables, flag_names;
  std::string last_table;
  std::set<std::string> closed;
  for (const auto& one : table()) {
    CAPTURE(one.key);
    CHECK(keys.insert(one.key).second);
    CHECK(variables.insert(one.variable()).second);
    CHECK((one.flag.empty() || flag_names.insert(one.flag).second));
    CHECK_FALSE(one.help.empty());
    if (!std::holds_alternative<std::monostate>(one.fallback))
      CHECK(check(one, one.fallback).problem.empty());
    const auto dot = one.key.find('.');
    const auto name = dot == std::string::npos ? "" : one.key.substr(0, dot);
    if (name != last_table) CHECK(closed.insert(name).second);  // each table is in one piece
    last_table = name;
  }
}

TEST_CASE("the JSON schema has each setting with its type and bounds", "[settings]") {
  const auto document = nlohmann::json::parse(json_schema(table()));
  for (const auto& one : table()) {
    auto pointer = "/properties/" + one.key;
    for (auto dot = pointer.find('.'); dot != std::string::npos; dot = pointer.find('.'))
      pointer.replace(dot, 1, "/properties/");
    CAPTURE(pointer);
    CHECK(document.contains(nlohmann::json::json_pointer(pointer)));
  }
  CHECK(document["properties"]["ranks"]["minimum"] == 1);
  CHECK(document["properties"]["model"]["properties"]["name"]["enum"] ==
        nlohmann::json({"cnn", "mlp"}));
  CHECK(document["additionalProperties"] == false);
}

TEST_CASE("the JSON schema accepts the short forms and former names that a file may have",
          "[settings]") {
  const auto all = nlohmann::json::parse(json_schema(table()))["properties"];
  // `model = "cnn"` is `model.name`, and `[model]` a table.
  CHECK(all["model"]["type"] == nlohmann::json({"object", "string"}));
  CHECK(all["model"]["anyOf"][1]["enum"] == nlohmann::json({"cnn", "mlp"}));
  CHECK(all["strategy"]["properties"]["powersgd"]["type"] == "object");
  CHECK(all["deterministic"]["enum"] == nlohmann::json({"false", "true", "warn", true, false}));
  CHECK(all["logger"]["type"] == nlohmann::json({"array", "string"}));
  CHECK(all["num_sanity_val_batches"]["deprecated"] == true);
}

TEST_CASE("the patience of early stopping may be 0, as in a program, and not negative",
          "[settings]") {
  const auto with = [](const std::string& patience) {
    return assignments({"early_stopping.monitor=val/loss", "early_stopping.patience=" + patience});
  };
  CHECK(refusal(with("0")).first == "nothing was refused");
  CHECK(mentions(refusal(with("-1")).first, "early_stopping.patience"));
}

TEST_CASE("the JSON schema names the values that only other builds have", "[settings]") {
  const auto communicator = [](bool mpi) {
    const auto all = make_schema({.models = {"mlp"},
                                  .data_sets = {"synthetic"},
                                  .accelerators = {"cpu"},
                                  .mpi = mpi,
                                  .nccl = true});
    return nlohmann::json::parse(json_schema(all))["properties"]["communicator"];
  };
  CHECK_FALSE(communicator(true).contains("x-other-builds"));
  CHECK(communicator(true)["enum"].back() == "mpi");
  CHECK(communicator(false)["x-other-builds"] == nlohmann::json({"mpi"}));
  CHECK(communicator(false)["enum"].back() == "nccl");
  const auto accelerator = [](std::vector<std::string> here) {
    const auto all = make_schema({{"mlp"}, {"synthetic"}, std::move(here)});
    return nlohmann::json::parse(json_schema(all))["properties"]["accelerator"];
  };
  CHECK_FALSE(accelerator({"cpu", "cuda", "lazy"}).contains("x-other-builds"));
  CHECK(accelerator({"cpu", "lazy"})["x-other-builds"] == nlohmann::json({"cuda"}));
  CHECK(accelerator({"cpu", "lazy"})["enum"] == nlohmann::json({"auto", "cpu", "lazy"}));
}

TEST_CASE("a fit accepts the bounds of the deadlines, and settings refuse what is beyond",
          "[settings]") {
  const auto accepts = [](const std::string& key, double value) {
    INFO(key << " = " << value);
    const auto what = assignments({fmt::format("{}={}", key, value)});
    CHECK_NOTHROW(check(options_of(settled(join(table(), what))).time));
  };
  const auto refuses = [](const std::string& key, double value) {
    CHECK(mentions(refusal(assignments({fmt::format("{}={}", key, value)})).first, key));
  };
  for (const std::string key : {"time.detect_seconds", "time.hook_limit_seconds"}) {
    const auto& one = *find_setting(table(), key);
    REQUIRE_FALSE(one.low_excluded);
    accepts(key, one.low);
    accepts(key, one.high);
    refuses(key, one.low - 1e-4);
    refuses(key, one.high + 1);
  }
}

TEST_CASE("edit distance is the number of single-character changes", "[settings]") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("ranks", "ranks") == 0);
  CHECK(edit_distance("rnaks", "ranks") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(suggestion("zzzzzz", {"ranks", "seed"}) == std::nullopt);
  CHECK(suggestion(std::string(10000, 'a'), {"a"}) == std::nullopt);
}

TEST_CASE("a number of any size is written as TOML that reads back the same", "[settings]") {
  CHECK(toml_text(setting_value{0.05}) == "0.05");
  CHECK(toml_text(setting_value{3.0}) == "3.0");
  CHECK(toml_text(setting_value{1e30}) == "1e+30");
  const auto* rate = find_setting(table(), "optimizer.learning_rate");
  for (const double number : {1e30, 1e-7, 2.0, 123456789.25, 1e16}) {
    const auto text = toml_text(setting_value{number});
    CAPTURE(text);
    CHECK(read_text(*rate, text).value == setting_value{number});
    CHECK(join(table(), assignments({"optimizer.learning_rate=" + text}))
              .settings.number("optimizer.learning_rate") == number);
  }
}
