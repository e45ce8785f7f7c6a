// Goal: a program's own models, data sets and their settings are declared as the header says, and
// mistakes in them are refused with a text that names them.
#include "tests/support/inverted_format.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/callback.hpp"
#include "troupe/data.hpp"
#include "troupe/main.hpp"
#include "troupe/precision.hpp"
#include "troupe/strategy.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using made_model = std::function<std::shared_ptr<module>()>;
using made_data = std::function<std::shared_ptr<data_module>()>;
const made_model no_model = [] { return nullptr; };
const made_data no_data = [] { return nullptr; };

struct ended {
  int code = 0;
  std::string out, err;
};

// What `program` writes into a file in place of the stream `number`.
class caught {
public:
  caught(const temporary_folder& folder, int number)
      : number_(number), path_(folder.path() / std::to_string(number)), before_(::dup(number)) {
    const auto file = ::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ::dup2(file, number_);
    ::close(file);
  }
  std::string text() {
    ::dup2(before_, number_);
    ::close(before_);
    std::stringstream all;
    all << std::ifstream{path_}.rdbuf();
    return all.str();
  }

private:
  int number_;
  std::filesystem::path path_;
  int before_;
};

ended run(const application& program, std::vector<const char*> arguments) {
  const temporary_folder folder;
  arguments.insert(arguments.begin(), "/usr/bin/mine");
  caught out{folder, STDOUT_FILENO}, err{folder, STDERR_FILENO};
  const auto code = program.run(static_cast<int>(arguments.size()), arguments.data());
  auto errors = err.text();
  return {code, out.text(), std::move(errors)};
}

struct all_kinds {
  bool bias = true;
  std::int32_t hidden = 7;
  std::int64_t seed = -1;
  float rate = 0.5F;
  std::string kind = "relu";
  std::string path;
  double limit = std::numeric_limits<double>::infinity();
  std::vector<std::int64_t> widths{3, 4};
  std::vector<std::string> files;
  template <class F>
  void fields(F&& f) {
    f("bias", bias), f("hidden", hidden), f("seed", seed), f("rate", rate), f("kind", kind);
    f("path", path), f("limit", limit), f("widths", widths), f("files", files);
  }
};

struct called_name {
  int name = 0;
  template <class F>
  void fields(F&& f) {
    f("name", name);
  }
};

struct twice {
  int width = 0;
  template <class F>
  void fields(F&& f) {
    f("width", width), f("width", width);
  }
};

struct placed {
  std::string dir;
  template <class F>
  void fields(F&& f) {
    f("dir", dir);
  }
};

// Counts the epochs that it sees.
class counting : public callback {
public:
  explicit counting(std::atomic<int>& epochs) : epochs_(epochs) {}
  void on_train_epoch_start(module&, std::int64_t) override { ++epochs_; }

private:
  std::atomic<int>& epochs_;
};

// Has place for three steps.
struct full_after_3 : inverted_format {
  std::vector<checkpoint_file> encode(const snapshot& what) const override {
    if (what.loop.steps > 3) throw user_error(errc::checkpoint, "the archive is full");
    return inverted_format::encode(what);
  }
};

// A fit, or a part of one, on few made-up images and in one rank.
ended run_small(const application& program, std::vector<const char*> command,
                std::vector<const char*> more = {}) {
  for (const auto* part :
       {"--data", "synthetic", "--set", "data.samples=64", "--set", "data.evaluation_samples=32",
        "--set", "model.hidden=[8]", "--ranks", "1", "--progress", "never"})
    command.push_back(part);
  command.insert(command.end(), more.begin(), more.end());
  return run(program, std::move(command));
}

}  // namespace

TEST_CASE("impossible names of a program's parts: each call is refused and names them",
          "[application]") {
  struct mistake {
    application program;
    std::string part;
  };
  std::vector<mistake> all;
  const auto with = [&](std::string part) -> application& {
    all.push_back({application{}, std::move(part)});
    return all.back().program;
  };
  with("two models are called net: rename one")
      .model("net", "", no_model)
      .model("net", "", no_model);
  with("two data sets are called d").data("d", "", no_data).data("d", "", no_data);
  with("a model has an empty name").model("", "", no_model);
  with("a data set has an empty name").data("", "", no_data);
  with("the model \"my net\": a name has letters, digits, _ and - only")
      .model("my net", "", no_model);
  with("the model mlp is built in: give yours another name").model("mlp", "", no_model);
  with("the data set csv is built in").data("csv", "", no_data);
  with("the model net has no function").model("net", "", made_model{});
  with("the data set d has no function")
      .data<twice>("d", "", std::function<std::shared_ptr<data_module>(const twice&)>{});
  with("a setting of the model net is called name")
      .model<called_name>("net", "", [](const called_name&) { return nullptr; });
  with("two settings of the data set d are called width").data<twice>("d", "", [](const twice&) {
    return nullptr;
  });
  for (const auto& [program, part] : all) {
    INFO(part);
    const auto refused = run(program, {"models"});
    CHECK(refused.code == 3);
    CHECK_THAT(refused.err, Catch::Contains(part));
    CHECK(refused.out.empty());
  }
}

TEST_CASE("the fields of a struct are settings of their types, with its defaults",
          "[application]") {
  application program;
  program.model<all_kinds>("net", "one", [](const all_kinds&) { return nullptr; });
  const auto printed = run(program, {"config", "print"});
  CHECK(printed.code == 0);
  for (const auto* line :
       {"name = \"net\"", "bias = true", "hidden = 7", "seed = -1", "rate = 0.5", "kind = \"relu\"",
        "# path =", "# limit =", "widths = [3, 4]", "files = []"}) {
    INFO(line);
    CHECK_THAT(printed.out, Catch::Contains("\n" + std::string{line} + " "));
  }
  for (const auto& [given, wrong] :
       {std::pair{"model.hidden=2147483648", "must be at most 2147483647"},
        std::pair{"model.bias=3", "true or false"}, std::pair{"model.widths=[\"a\"]", "integers"},
        std::pair{"model.rate=fast", "a number is needed"}}) {
    const auto refused = run(program, {"config", "print", "--set", given});
    CHECK(refused.code == 3);
    CHECK_THAT(refused.err, Catch::Contains(wrong));
  }
  const auto largest = run(program, {"config", "print", "--set", "model.seed=9223372036854775807"});
  CHECK_THAT(largest.out, Catch::Contains("seed = 9223372036854775807"));
}

TEST_CASE("settings reach the function that makes a model; it may throw, or return nothing",
          "[application]") {
  all_kinds seen;
  application program;
  program.model<all_kinds>("net", "one", [&](const all_kinds& how) {
    seen = how;
    return nullptr;
  });
  const auto refused = run(program, {"models"});
  CHECK(refused.code == 3);
  CHECK_THAT(refused.err, Catch::Contains("the function of the model net returns nothing"));
  CHECK((seen.hidden == 7 && seen.limit == std::numeric_limits<double>::infinity()));

  program.data("broken", "", []() -> std::shared_ptr<data_module> {
    throw std::runtime_error("the file is gone");
  });
  const temporary_folder folder;
  const auto path = (folder.path() / "run").string();
  const auto failed = run(program, {"fit", "--run-dir", path.c_str()});
  CHECK(failed.code == 1);
  CHECK_THAT(failed.err, Catch::Contains("cannot make the data set broken: the file is gone"));
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a model's constructor that throws ends `models` with its text", "[application]") {
  application program;
  program.model("net", "", []() -> std::shared_ptr<module> {
    throw std::runtime_error("the vocabulary is gone");
  });
  const auto failed = run(program, {"models"});
  CHECK(failed.code == 1);
  CHECK_THAT(failed.err, Catch::Contains("cannot make the model net: the vocabulary is gone"));
}

TEST_CASE("a data set with a setting called dir has the flag --data-dir", "[application]") {
  application program;
  program.data<placed>("files", "", [](const placed&) { return nullptr; });
  const auto printed = run(program, {"config", "print", "--data-dir", "/here"});
  CHECK_THAT(printed.out, Catch::Contains("\ndir = \"/here\" "));
  CHECK(run(program, {"config", "print", "--data", "text", "--data-dir", "/here"}).code == 0);
}

TEST_CASE("a program changes the plug-ins of its jobs once in a process", "[application]") {
  int calls = 0;
  application program;
  program.plugins([&](torch_plugins&) { ++calls; });
  CHECK(run(program, {"config", "print"}).code == 0);
  CHECK(calls == 1);
}

TEST_CASE("strategies and precisions of a program are chosen by their names", "[application]") {
  int strategies = 0, precisions = 0;
  application program;
  program.plugins([&](torch_plugins& p) {
    p.strategies["mine"] = [&, base = p.strategies.at("single_device")](strategy_parts parts) {
      ++strategies;
      return base(std::move(parts));
    };
    p.precisions["exact"] = [&, base = p.precisions.at("64-true")] {
      ++precisions;
      return base();
    };
  });
  const temporary_folder folder;
  const auto path = (folder.path() / "run").string();
  const auto ended =
      run(program, {"fit", "--data", "synthetic", "--ranks", "1", "--strategy", "mine",
                    "--precision", "exact", "--fast-dev-run", "--run-dir", path.c_str()});
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(strategies > 0);
  CHECK(precisions > 0);
  const auto refused = run(program, {"fit", "--strategy", "other", "--precision", "more"});
  CHECK(refused.code == 3);
  CHECK_THAT(refused.err, Catch::Contains("mine)") && Catch::Contains("exact)"));
}

TEST_CASE("a search has none of a program's callbacks but its schedule of accumulation",
          "[application]") {
  std::atomic<int> epochs = 0;
  application program;
  program.plugins([&](torch_plugins& p) {
    p.callbacks = {model_checkpoint{{.keep_best = 3}}, counting{epochs},
                   [&] { return std::make_shared<counting>(epochs); }};
  });
  const auto size = run_small(program, {"tune", "batch-size", "--max-size", "4"});
  CHECK(size.out == "batch size 4; use it with --batch-size 4\n");
  const auto rate = run_small(program, {"tune", "learning-rate"}, {"--steps", "40"});
  INFO(size.err << rate.err);
  CHECK(rate.code == 0);
  CHECK(epochs == 0);

  application scheduled;
  scheduled.plugins([](torch_plugins& p) {
    p.callbacks = {gradient_accumulation_scheduler{{0, 2}}};
  });
  const auto refused = run_small(scheduled, {"tune", "batch-size", "--max-size", "4"},
                                 {"--accumulate-grad-batches", "3"});
  CHECK(refused.code == 3);
  CHECK_THAT(refused.err, Catch::Contains("gradient_accumulation_scheduler"));
}

TEST_CASE("the best checkpoint is that of a program's model_checkpoint", "[application]") {
  int data_made = 0;
  application program;
  program.data("mine", "", [&]() -> std::shared_ptr<data_module> {
    ++data_made;
    return synthetic({.samples = 64, .evaluation = 32});
  });
  program.plugins([](torch_plugins& p) {
    p.callbacks = {model_checkpoint{{.keep_last = 3, .monitor = "val/accuracy", .maximize = true}}};
  });
  const temporary_folder folder;
  const auto path = (folder.path() / "run").string();
  const auto fitted =
      run(program, {"fit", "--model", "mlp", "--set", "model.hidden=[8]", "--max-epochs", "2",
                    "--ranks", "1", "--progress", "never", "--run-dir", path.c_str()});
  INFO(fitted.err);
  CHECK(fitted.code == 0);
  CHECK(data_made == 1);
  CHECK_THAT(run(program, {"checkpoint", "list", path.c_str()}).out,
             Catch::Contains("best: val/accuracy"));
  CHECK(data_made == 1);
}

TEST_CASE("a program reads its runs in its own format of checkpoints", "[application]") {
  application program;
  program.data("mine", "", []() -> std::shared_ptr<data_module> {
    return synthetic({.samples = 64, .evaluation = 32});
  });
  program.plugins([](torch_plugins& p) { p.checkpoints = std::make_shared<full_after_3>(); });
  const temporary_folder folder;
  const auto path = (folder.path() / "run").string();
  const auto last = (folder.path() / "run/checkpoints/step-00000002").string();
  const auto file = (folder.path() / "weights").string();
  const auto other = (folder.path() / "other").string();
  const auto passes = [&](std::vector<const char*> arguments, const std::string& part) {
    const auto said = run(program, std::move(arguments));
    INFO(said.err);
    CHECK(said.code == 0);
    CHECK_THAT(said.out + said.err, Catch::Contains(part));
  };
  passes({"fit", "--model", "mlp", "--set", "model.hidden=[8]", "--max-epochs", "1", "--ranks", "1",
          "--progress", "never", "--run-dir", path.c_str()},
         "finished after 1 epochs");
  passes({"fit", "--run-dir", path.c_str(), "--resume", "latest", "--max-epochs", "2"},
         "finished after 2 epochs");
  passes({"fit", "--run-dir", other.c_str(), "--resume", last.c_str(), "--max-epochs", "3"},
         "finished after 3 epochs");
  passes({"test", "--run-dir", path.c_str()}, "test/accuracy");
  passes({"validate", "--checkpoint", last.c_str()}, "val/accuracy");
  passes({"checkpoint", "inspect", path.c_str()}, "step 2, epoch 2, 1 ranks");
  passes({"checkpoint", "verify", path.c_str()}, "good, step 2, weights_digest ");
  passes({"checkpoint", "list", path.c_str()}, "step-00000002  best: val/loss");
  passes(
      {"checkpoint", "export", path.c_str(), "--format", "safetensors", "--output", file.c_str()},
      file);

  const auto texts = (folder.path() / "texts").string();
  const auto words = (folder.path() / "words").string();
  std::string text;
  for (int i = 0; i < 300; ++i) text += "some words, again and again. ";
  write_text(words, text);
  passes({"fit", "--model", "gpt", "--data", "text", "--data-dir", words.c_str(), "--max-steps",
          "0", "--ranks", "1", "--run-dir", texts.c_str()},
         "finished after 0 epochs");
  passes({"write", texts.c_str(), "--prompt", "again", "--characters", "2"}, "again");

  const auto failed =
      run(program, {"fit", "--run-dir", other.c_str(), "--resume", "latest", "--max-epochs", "4"});
  CHECK(failed.code == 5);
  CHECK_THAT(failed.err, Catch::Contains("saved up to step 3 of 4"));
  write_text(std::filesystem::path{last} / "manifest.json", "damaged");
  const auto refused = run(program, {"test", "--run-dir", path.c_str()});
  CHECK(refused.code == 5);
  CHECK_THAT(run(program, {"checkpoint", "list", path.c_str()}).out, Catch::Contains("damaged"));
}

TEST_CASE("texts of a program: its file is its name unless it is given another one",
          "[application]") {
  CHECK(run(application{}, {"--version"}).out.starts_with("mine (troupe "));
  const application named{{.name = "other", .about = "Learns shapes.", .version = "2.1"}};
  CHECK(run(named, {"--version"}).out.starts_with("other 2.1 (troupe "));
  const auto help = run(named, {"--help"}).out;
  CHECK_THAT(help, Catch::Contains("Learns shapes.") && Catch::Contains("  other fit --model cnn"));
}
