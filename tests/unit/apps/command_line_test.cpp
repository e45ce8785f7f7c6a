// Goal: each setting has its flag, both spellings of a flag work, and the error for an unknown flag
// suggests the most similar one.
#include "apps/troupe/setting_flags.hpp"
#include "tests/unit/apps/small_schema.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using namespace troupe::testing;

namespace {

// The settings that `troupe fit ARGUMENTS` reads.
resolution fit(std::vector<std::string> arguments) {
  command_line line{{.name = "troupe", .about = "", .footer = "", .version = ""}};
  setting_flags flags;
  flags.add(line.top().require_command().add_command("fit", "train"), table());
  arguments.insert(arguments.begin(), "fit");
  const auto asked_for = line.read(std::move(arguments));  // throws: CHECK would catch that
  CHECK_FALSE(asked_for);
  return join(table(), flags.taken({}));
}

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    fit(arguments);
  } catch (const user_error& error) {
    CHECK(error.code() == errc::bad_usage);
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("flags set their settings, and a repeated flag keeps its last value", "[command_line]") {
  const auto s = settled(fit({"--ranks", "3", "--max-epochs=2", "--model", "cnn", "--ranks", "4",
                              "--set", "model.dropout=0.5", "--set", "seed=9"}));
  CHECK(s.integer("ranks") == 4);
  CHECK(s.integer("max_epochs") == 2);
  CHECK(s.text("model.name") == "cnn");
  CHECK(s.integer("seed") == 9);
  CHECK(s.at("ranks").origin.text() == "flag --ranks");
}

TEST_CASE("a flag can be written with hyphens or underscores", "[command_line]") {
  const auto s = settled(fit({"--max_epochs", "7", "--batch_size=8", "--run-dir", "a_b"}));
  CHECK(s.integer("max_epochs") == 7);
  CHECK(s.integer("batch_size") == 8);
  CHECK(s.text("run_dir") == "a_b");
  CHECK(normalised({"--a_b=c_d", "--", "--e_f"}) ==
        std::vector<std::string>{"--a-b=c_d", "--", "--e_f"});
}

TEST_CASE("a switch is a flag without a value, and --no-NAME negates it", "[command_line]") {
  CHECK(settled(fit({"--json"})).flag("json"));
  CHECK_FALSE(settled(fit({"--json", "--no-json"})).flag("json"));
  CHECK_FALSE(settled(fit({})).flag("json"));
  CHECK(settled(fit({"--fast-dev-run"})).integer("fast_dev_run") == 1);
  CHECK(settled(fit({"--fast-dev-run", "--ranks", "1"})).integer("fast_dev_run") == 1);
  CHECK(settled(fit({"--fast-dev-run", "3"})).integer("fast_dev_run") == 3);
  CHECK(settled(fit({"--fast-dev-run=3"})).integer("fast_dev_run") == 3);
}

TEST_CASE("a flag with nothing after its = has an empty value, not the next argument",
          "[command_line]") {
  const auto complaint = [](const std::vector<std::string>& arguments) -> std::string {
    try {
      settled(fit(arguments));
    } catch (const user_error& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  CHECK(mentions(complaint({"--max-epochs=", "--json"}), "(flag --max-epochs): an integer"));
  CHECK(mentions(complaint({"--run_dir=", "--json"}), "(flag --run-dir): must not be empty"));
  CHECK(mentions(complaint({"--max-epochs="}), "(flag --max-epochs): an integer"));
  CHECK(mentions(refusal({"--rnks=", "3"}), "did you mean \"--ranks\"?"));
  CHECK(settled(fit({"--json=", "--max-epochs", "4"})).integer("max_epochs") == 4);
}

TEST_CASE("the brackets of a value stay, whatever takes it", "[command_line]") {
  command_line line{{.name = "troupe", .about = "", .footer = "", .version = ""}};
  std::vector<std::string> runs;
  std::string output;
  const auto report = line.top().add_command("report", "");
  report.add("RUN_DIR", runs, "");
  report.add("--output", output, "");
  line.read({"report", "--output", "[o]", "--", "[a]", "b", "[c,d]"});
  CHECK(runs == std::vector<std::string>{"[a]", "b", "[c,d]"});
  CHECK(output == "[o]");
  CHECK(mentions(refusal({"[a,b]"}), "unknown argument \"[a,b]\""));
}

TEST_CASE("the flag --fault can be repeated, and its value keeps its commas", "[command_line]") {
  const auto s = settled(
      fit({"--fault", "throw@rank=0,hook=setup", "--fault", "stall@rank=1,hook=setup,ms=5"}));
  CHECK(s.get<std::vector<std::string>>("fault") ==
        std::vector<std::string>{"throw@rank=0,hook=setup", "stall@rank=1,hook=setup,ms=5"});
}

TEST_CASE("the flag --checkpoint is another name of --resume", "[command_line]") {
  CHECK(settled(fit({"--checkpoint", "somewhere"})).text("resume") == "somewhere");
}

TEST_CASE("the error for an unknown flag or argument suggests the most similar one",
          "[command_line]") {
  CHECK(mentions(refusal({"--rnks", "3"}), "unknown flag \"--rnks\"; did you mean \"--ranks\"?"));
  CHECK(mentions(refusal({"--learning-rte=1"}), "did you mean \"--learning-rate\"?"));
  CHECK(mentions(refusal({"surplus"}), "unknown argument \"surplus\""));
}

TEST_CASE("each setting's flag reaches it", "[command_line]") {
  for (const auto& one : table()) {
    if (one.flag.empty() || std::holds_alternative<std::monostate>(one.fallback)) continue;
    if (one.kind == kind::boolean || one.kind == kind::texts) continue;
    auto text = toml_text(one.fallback);
    std::erase(text, '"');
    const auto s = settled(fit({one.flag.substr(0, one.flag.find(',')), text}));
    CAPTURE(one.key);
    CHECK(s.is_given(one.key));
    CHECK(s.at(one.key).value == one.fallback);
  }
}
