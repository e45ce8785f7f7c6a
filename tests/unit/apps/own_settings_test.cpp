// Goal: the settings of a program's own models and data sets stand beside those of the built-in
// ones, and each is there with its model or data set only.
#include "apps/troupe/config_text.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "backends/telemetry/line_file.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/small_schema.hpp"

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using namespace troupe::testing;

namespace {

// A program with a model and a data set of its own beside the built-in ones.
const schema& with_own() {
  static const auto all = [] {
    setting width{.key = "hidden", .kind = kind::integer, .fallback = std::int64_t{64}};
    setting files{.key = "files", .kind = kind::texts, .fallback = std::vector<std::string>{}};
    schema_names names{{"cnn", "mlp"}, {"fashion_mnist"}};
    names.own_models = {{"net", {width}}, {"bare", {}}};
    names.own_data = {{"mine", {files}}};
    return make_schema(names);
  }();
  return all;
}

given by_assignments(std::vector<std::string> texts) { return {{}, {}, std::move(texts), {}}; }

std::string first_complaint(const given& what) {
  const auto all = join(with_own(), what).complaints;
  return all.empty() ? "none" : all.front().text;
}

}  // namespace

TEST_CASE("a key of several models has the type and the default of the chosen one", "[settings]") {
  const auto own = settled(join(with_own(), {}));
  CHECK(own.text("model.name") == "net");
  CHECK(own.text("data.name") == "mine");
  CHECK(own.integer("model.hidden") == 64);
  CHECK(find_setting(own.all(), "optimizer.name") == nullptr);
  CHECK(find_setting(own.all(), "data.samples") == nullptr);

  const temporary_folder folder;
  const auto path = (folder.path() / "job.toml").string();
  replace_text_file(path, "[model]\nhidden = [1, 2]\n[data]\nname = \"fashion_mnist\"\n");
  given what;
  what.files = {path};
  CHECK(mentions(first_complaint(what), "model.hidden = [1, 2]"));
  what.variables = {{"TROUPE_MODEL", "mlp"}};
  const auto built_in = settled(join(with_own(), what));
  CHECK(built_in.get<std::vector<std::int64_t>>("model.hidden") == std::vector<std::int64_t>{1, 2});
  CHECK(built_in.text("optimizer.name") == "sgd");
  CHECK(find_setting(built_in.all(), "data.samples") == nullptr);  // of synthetic
}

TEST_CASE("a setting of another model or data set is refused with those of the chosen one",
          "[settings]") {
  CHECK(first_complaint(by_assignments({"model.dropout=0.5"})) ==
        "model.dropout (--set): the model net has no such setting; it has model.hidden");
  CHECK(first_complaint(by_assignments({"model=bare", "model.hidden=3"})) ==
        "model.hidden (--set): the model bare has no such setting; it has none");
  CHECK(first_complaint({{}, {}, {}, {{"optimizer.momentum", "--momentum", {"0.5"}}}}) ==
        "optimizer.momentum (flag --momentum): the model net has no such setting; it has "
        "model.hidden");
  CHECK(first_complaint(by_assignments({"data.dir=x"})) ==
        "data.dir (--set): the data set mine has no such setting; it has data.files");
  CHECK(mentions(first_complaint(by_assignments({"model.hiddn=3"})),
                 "unknown key \"model.hiddn\" (--set); did you mean \"model.hidden\"?"));
}

TEST_CASE("built-in models and data sets have their own settings only", "[settings]") {
  CHECK(mentions(first_complaint(by_assignments({"model=cnn", "model.hidden=[3]"})),
                 "the model cnn has no such setting; it has model.dropout"));
  CHECK(mentions(first_complaint(by_assignments({"data=fashion_mnist", "data.target=x"})),
                 "the data set fashion_mnist has no such setting; it has data.dir"));
  CHECK(first_complaint(by_assignments({"model=mlp", "model.hidden=[3]"})) == "none");
}

TEST_CASE("another model's setting in a file is a note, but not with its default", "[settings]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "job.toml").string();
  replace_text_file(path,
                    "[model]\nname = \"cnn\"\nhidden = [1, 2]\n[data]\nname = "
                    "\"fashion_mnist\"\nsamples = 2048\n");
  given what;
  what.files = {path};
  const auto result = join(with_own(), what);
  CHECK(result.complaints.empty());
  CHECK(result.notes == std::vector<std::string>{"model.hidden (file " + path +
                                                 ":3) has no effect: the model cnn has no "
                                                 "model.hidden"});
}

TEST_CASE("a variable of another model's setting is a note, not an error", "[settings]") {
  given what;
  what.variables = {{"TROUPE_LEARNING_RATE", "0.1"}, {"TROUPE_DATA_DIRS", "x"}};
  const auto result = join(with_own(), what);
  CHECK(result.complaints.empty());
  CHECK(result.notes ==
        std::vector<std::string>{
            "the variable TROUPE_DATA_DIRS names no setting; did you mean \"TROUPE_DATA_FILES\"?",
            "the variable TROUPE_LEARNING_RATE has no effect: the model net has no "
            "optimizer.learning_rate"});
}

TEST_CASE("the JSON schema has each type of a key of several models", "[settings]") {
  const auto tables = nlohmann::json::parse(json_schema(with_own()))["properties"];
  const auto hidden = tables["model"]["properties"]["hidden"]["anyOf"];
  REQUIRE(hidden.size() == 2);
  CHECK(hidden[0]["type"] == "array");
  CHECK(hidden[1]["type"] == "integer");
  CHECK(tables["data"]["properties"]["files"]["type"] == "array");
}
