// Goal: learners can resume in the middle of an epoch with other ranks or another batch size. A
// checkpoint of another job is refused. Checks before the start call hooks in the order of a rank.
// The files of a program's own loggers are those of an undisturbed run, whatever happens.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sstream>

#include "backends/telemetry/csv_logger.hpp"
#include "backends/torch/resume_check.hpp"
#include "tests/support/one_checkpoint.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/loggers.hpp"
#include "troupe/strategy.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Records which samples were read.
struct watched_data : table_data {
  using table_data::table_data;
  struct watched_rows : dataset {
    dataset_ptr rows;
    mutable std::mutex guard;
    mutable std::vector<std::int64_t> seen;
    std::int64_t size() const override { return rows->size(); }
    value get(std::span<const std::int64_t> indices) const override {
      const std::lock_guard lock{guard};
      seen.insert(seen.end(), indices.begin(), indices.end());
      return rows->get(indices);
    }
  };
  explicit watched_data(std::int64_t samples) : table_data(samples) {
    watched->rows = table_data::train();
  }
  dataset_ptr train() override { return watched; }
  std::vector<std::int64_t> taken() {
    std::ranges::sort(watched->seen);
    return std::exchange(watched->seen, {});
  }
  std::shared_ptr<watched_rows> watched = std::make_shared<watched_rows>();
};

trainer_options one_epoch(std::int32_t ranks, std::int64_t batch_size) {
  auto options = quick(ranks, batch_size, 100000);
  options.max_epochs = 1;
  options.max_steps.reset();
  return options;
}

snapshot_ptr stopped_after(std::int64_t steps, trainer_options options, const data_ptr& data) {
  options.max_steps = steps;
  return run_good_job({.recipe = recipe_for<regression>(data), .options = options})[0].snapshot;
}

recipe_ptr resuming(const snapshot_ptr& from, const data_ptr& data) {
  torch_plugins plugins;
  plugins.checkpoints = std::make_shared<one_checkpoint>(from);
  return make_recipe([] { return std::make_shared<regression>(); }, data, plugins);
}

std::string refusal(const trainer_options& options, const snapshot_ptr& from,
                    const data_ptr& data) {
  const auto recipe = resuming(from, data);
  std::string before;
  try {
    recipe->check_fit(options, from.get(), "the checkpoint");
  } catch (const user_error& e) {
    before = e.what();
  }
  const auto ends = run_job({.recipe = recipe, .options = options, .resume = "the checkpoint"});
  const auto there = text_of(ends[0].error);
  INFO(before << "; in a rank: " << there);
  CHECK(before.empty() == !ends[0].error);
  CHECK((before.empty() || there.find(before) != std::string::npos));
  return before;
}

}  // namespace

TEST_CASE("resume in mid-epoch with other ranks or batch size consumes the remaining samples") {
  struct row {
    std::int32_t ranks;
    std::int64_t batch_size;
  };
  const auto now = GENERATE(row{3, 16}, row{1, 16}, row{2, 7}, row{4, 50}, row{2, 16});
  CAPTURE(now.ranks, now.batch_size);
  const auto data = std::make_shared<watched_data>(960);
  const auto half = stopped_after(10, one_epoch(2, 16), data);
  CHECK(half->loop.cursor == 320);
  data->taken();
  const auto ends = run_good_job({.recipe = resuming(half, data),
                                  .options = one_epoch(now.ranks, now.batch_size),
                                  .resume = "here"});
  CHECK(ends[0].loop.samples == 960);
  CHECK(ends[0].loop.epoch == 1);
  auto left = permutation(3, 0, 960);
  left.erase(left.begin(), left.begin() + 320);
  std::ranges::sort(left);
  CHECK(data->taken() == left);
}

TEST_CASE("a resumed fit keeps what hooks changed: frozen parameters, modes and groups") {
  const auto data = std::make_shared<table_data>(24, 4, 4);
  const auto options = quick(2, 4, 11);  // 3 steps per epoch
  const auto whole = trained<fine_tuned>(options, data);
  auto until = options;
  snapshot_ptr left;
  for (const std::int64_t steps : {4, 8, 11}) {
    CAPTURE(steps);
    torch_plugins plugins;
    plugins.checkpoints = std::make_shared<one_checkpoint>(left);
    until.max_steps = steps;
    const auto recipe = make_recipe([] { return std::make_shared<fine_tuned>(); }, data, plugins);
    CHECK_NOTHROW(recipe->check_fit(until, left.get(), "here"));
    const auto* from = left ? "here" : "";
    left = run_good_job({.recipe = recipe, .options = until, .resume = from})[0].snapshot;
  }
  CHECK(distance(weights_of(left), whole) == 0);
  CHECK(distance(whole, trained<regression>(options, data)) > 1e-3);
}

TEST_CASE("an evaluation of a checkpoint gives its data's state to data of the same name only") {
  struct noting : table_data {
    explicit noting(std::string called) : table_data(24), called_(std::move(called)) {}
    std::string name() const override { return called_; }
    std::string state() const override { return "\"of " + called_ + "\""; }
    void load_state(const std::string& json) override { got = json; }
    std::vector<dataset_ptr> validation() override { return {train()}; }
    std::string got;

  private:
    std::string called_;
  };
  const auto options = quick(1, 4, 3);
  const auto from = stopped_after(3, options, std::make_shared<noting>("one"));
  for (const auto* name : {"one", "other", ""}) {
    const auto data = std::make_shared<noting>(name);
    run_good_job({.recipe = resuming(from, data),
                  .options = options,
                  .purpose = stage::validate,
                  .resume = "here"});
    CHECK(data->got == (data->name() == "one" ? "\"of one\"" : ""));
  }
}

TEST_CASE("a resumed fit knows of a stop that a hook asked for after the last step") {
  struct leaving : regression {
    void on_train_batch_end(const step_output&, const batch&, std::int64_t index) override {
      if (rank() == 1 && index == 2) stop();
    }
  };
  const auto data = std::make_shared<table_data>(96);
  auto options = quick(2, 4, 3);
  torch_plugins plugins;
  plugins.checkpoints = std::make_shared<one_checkpoint>(
      run_good_job({.recipe = recipe_for<leaving>(data), .options = options})[0].snapshot);
  options.max_steps = 11;
  const auto recipe = make_recipe([] { return std::make_shared<leaving>(); }, data, plugins);
  CHECK(run_good_job({.recipe = recipe_for<leaving>(data), .options = options})[0].loop.steps == 4);
  const auto end = run_good_job({.recipe = recipe, .options = options, .resume = "here"})[0];
  CHECK(end.loop.steps == 4);
  plugins.checkpoints = std::make_shared<one_checkpoint>(end.snapshot);
  const auto again = make_recipe([] { return std::make_shared<leaving>(); }, data, plugins);
  CHECK(run_good_job({.recipe = again, .options = options, .resume = "here"})[0].loop.steps == 11);
}

TEST_CASE("an epoch of overfit_batches resumes where it was left") {
  const auto data = std::make_shared<table_data>(20);
  auto options = quick(2, 3, 7);
  options.overfit_batches = std::int64_t{3};
  const auto whole = trained<regression>(options, data);
  const auto half = stopped_after(4, options, data);  // in the second epoch
  CHECK(half->loop.earlier_batches == 3);
  const auto rest =
      run_good_job({.recipe = resuming(half, data), .options = options, .resume = "here"});
  CHECK(distance(weights_of(rest[0].snapshot), whole) == 0);
}

TEST_CASE("a second resume in the same epoch continues at the cursor") {
  const auto data = std::make_shared<watched_data>(960);
  const auto first = stopped_after(10, one_epoch(2, 16), data);
  auto options = one_epoch(3, 16);
  options.max_steps = 14;
  const auto second =
      run_good_job({.recipe = resuming(first, data), .options = options, .resume = "here"});
  CHECK(second[0].snapshot->loop.cursor == 320 + 4 * 48);
  const auto ends = run_good_job({.recipe = resuming(second[0].snapshot, data),
                                  .options = one_epoch(1, 20),
                                  .resume = "here"});
  CHECK(ends[0].loop.samples == 960);
  auto all = data->taken();
  // Loaders of stopped runs had read ahead, so samples may repeat; none is missing.
  all.erase(std::unique(all.begin(), all.end()), all.end());
  CHECK(all.size() == 960);
}

TEST_CASE("a checkpoint without a cursor can be resumed only with its own ranks and batch size") {
  const auto data = std::make_shared<watched_data>(96);
  auto options = one_epoch(2, 8);
  options.max_epochs = 3;
  auto old = std::make_shared<snapshot>(*stopped_after(8, options, data));
  REQUIRE(old->loop.epoch == 1);
  REQUIRE(old->loop.cursor == 32);
  old->loop.cursor = -1;
  const auto ends =
      run_good_job({.recipe = resuming(old, data), .options = options, .resume = "here"});
  CHECK(ends[0].loop.samples == 3 * 96);
  auto other = options;
  other.batch_size = 16;
  CHECK_THAT(refusal(other, old, data), Catch::Contains("of an earlier version") &&
                                            Catch::Contains("2 ranks with batch_size 16"));
  other = options;
  other.ranks = 3;
  CHECK_THAT(refusal(other, old, data), Catch::Contains("of an earlier version"));
}

TEST_CASE("resume with another seed or data set or model or optimizer: the error names it") {
  struct named_data : table_data {
    named_data(std::int64_t samples, std::string called)
        : table_data(samples), called_(std::move(called)) {}
    std::string name() const override { return called_; }
    std::string called_;
  };
  const auto data = std::make_shared<named_data>(96, "tables");
  const auto options = one_epoch(2, 8);
  const auto from = stopped_after(2, options, data);
  CHECK(refusal(options, from, data).empty());
  auto other = options;
  other.seed = 1;
  CHECK(refusal(other, from, data) ==
        "the checkpoint was made with seed 3, this run has 1: pass --seed 3, or start a fresh run");
  CHECK_THAT(refusal(options, from, std::make_shared<named_data>(96, "chairs")),
             Catch::Contains("was made with data set tables, this run has chairs"));
  CHECK_THAT(refusal(options, from, std::make_shared<named_data>(80, "tables")),
             Catch::Contains("was made with 96 samples of training data, this run has 80"));
  auto elsewhere = std::make_shared<snapshot>(*from);
  elsewhere->model.pop_back();
  CHECK_THAT(refusal(options, elsewhere, data),
             Catch::Contains("the weights do not fit the model"));
  auto by_another = std::make_shared<snapshot>(*from);
  const auto at = by_another->state.find("\"sgd\"");
  REQUIRE(at != std::string::npos);
  by_another->state.replace(at, 5, "\"adam\"");
  CHECK_THAT(refusal(options, by_another, data), Catch::Contains("it is of adam, not of sgd"));
}

TEST_CASE("resume in mid-epoch with a drop_last that cuts it too short: the error names it") {
  struct cut_data : table_data {
    using table_data::table_data;
    data_loading loading(stage, std::int32_t) override { return {.drop_last = true}; }
  };
  const auto half = stopped_after(5, one_epoch(2, 8), std::make_shared<table_data>(96));
  const auto data = std::make_shared<cut_data>(96);
  CHECK(refusal(one_epoch(2, 8), half, data).empty());
  CHECK_THAT(refusal(one_epoch(1, 35), half, data),
             Catch::Contains("80 samples of epoch 0, but an epoch of this run has only 70") &&
                 Catch::Contains("if it has drop_last, which cuts the epoch, leave that out"));
}

namespace {

/// A user's own checkpoint IO: keeps snapshots by name.
struct memory_checkpoints : checkpoint_io {
  std::vector<checkpoint_file> encode(const snapshot&) const override { return {}; }
  std::string commit_file() const override { return "none"; }
  checkpoint_facts facts(std::span<const std::byte>, const std::string&) const override {
    return {};
  }
  snapshot read(const std::string& folder) const override {
    const std::lock_guard lock{mutex};
    ++reads;
    return *kept.at(folder);
  }
  void remove(const std::string& folder) const override {
    const std::lock_guard lock{mutex};
    removed.push_back(folder);
  }
  found_checkpoint latest(const std::string&) const override { return {}; }

  mutable std::vector<std::string> removed;
  mutable std::mutex mutex;
  mutable int reads = 0;
  std::map<std::string, snapshot_ptr> kept;
};

struct remembering : regression {
  remembering()
      : regression({.dropout = 0.2, .optimize = [](regression& m) {
                      auto how = torch::optim::SGDOptions(0.05).momentum(0.9);
                      const schedule each_step{.every = schedule::interval::step};
                      return optimizers{torch::optim::SGD(m.parameters(), how)}
                          .scheduled(schedules::one_cycle({.max_lr = {0.05}, .total_steps = 20}),
                                     each_step)
                          .scheduled<torch::optim::StepLR>(each_step, 3, 0.7)
                          .scheduled(schedules::sequential(
                              {schedules::linear(0.5, 1, 1), schedules::exponential(0.9)}, {1}))
                          .scheduled<torch::optim::ReduceLROnPlateauScheduler>(
                              {.monitor = "val/loss"},
                              torch::optim::ReduceLROnPlateauScheduler::min, 0.5, 0);
                    }}) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    ++count;
    log("epoch mean", static_cast<double>(count * (rank() + 1)),
        {.on_step = false, .on_epoch = true});
    return regression::training_step(b, index);
  }
  std::string on_save_checkpoint() override { return std::to_string(count); }
  void on_load_checkpoint(const std::string& json) override { count = std::stoi(json); }
  int count = 0;
};

}  // namespace

TEST_CASE("a checkpoint of data whose name is not UTF-8 is refused in words") {
  CHECK_THROWS_WITH(record_text({.data = "caf\xe9"}), Catch::Contains("name() of the data"));
}

TEST_CASE("a resumed run ends in the bits of the uninterrupted run") {
  const auto data = std::make_shared<table_data>(30, 4, 8);
  auto options = quick(2, 3, 13);  // 5 steps per epoch
  options.accumulate_grad_batches = 1;
  const auto whole = run_good_job({.recipe = recipe_for<remembering>(data), .options = options});
  const auto cut = GENERATE(3, 5, 8);
  auto first = options;
  first.max_steps = cut;
  const auto half = run_good_job({.recipe = recipe_for<remembering>(data), .options = first});
  const auto files = std::make_shared<memory_checkpoints>();
  files->kept["here"] = half[0].snapshot;
  torch_plugins plugins;
  plugins.checkpoints = files;
  const auto rest = run_good_job(
      {.recipe = make_recipe([] { return std::make_shared<remembering>(); }, data, plugins),
       .options = options,
       .resume = "here"});
  CAPTURE(cut);
  CHECK(files->reads == 2);  // once per rank
  CHECK(distance(weights_of(whole[0].snapshot), weights_of(rest[0].snapshot)) == 0);
  CHECK(whole[0].snapshot->weights_digest == rest[0].snapshot->weights_digest);
  CHECK(whole[0].snapshot->state == rest[0].snapshot->state);
  CHECK(whole[0].loop == rest[0].loop);
  CHECK(whole[0].snapshot->optimizer.size() == 4);
}

TEST_CASE("rank 0 removes a checkpoint through the port that wrote it") {
  struct tidy : regression {
    void on_train_end() override { strategy_in_use()->remove_checkpoint("run/step-00000001"); }
  };
  const auto files = std::make_shared<memory_checkpoints>();
  torch_plugins plugins;
  plugins.checkpoints = files;
  run_good_job({.recipe = make_recipe([] { return std::make_shared<tidy>(); },
                                      std::make_shared<table_data>(16), plugins),
                .options = quick(2, 4, 1)});
  CHECK(files->removed == std::vector<std::string>{"run/step-00000001"});
}

namespace {

struct saving_at_end : regression {
  explicit saving_at_end(std::string to) : to_(std::move(to)) {}
  void on_train_end() override { save_checkpoint(to_); }

private:
  std::string to_;
};

std::string saved_to(const std::filesystem::path& path, const torch_plugins& plugins = {}) {
  const auto recipe = make_recipe([&] { return std::make_shared<saving_at_end>(path.string()); },
                                  std::make_shared<table_data>(8), plugins);
  return text_of(run_job({.recipe = recipe, .options = quick(2, 2, 2)})[0].error);
}

}  // namespace

TEST_CASE("save_checkpoint takes a path with a slash at its end") {
  const temporary_folder folder;
  const auto path = folder.path() / "saved";
  CHECK(saved_to(path.string() + "/") == "nothing");
  CHECK(std::filesystem::exists(path / "model.safetensors"));
  CHECK_FALSE(std::filesystem::exists(path / "..tmp"));
}

TEST_CASE("save_checkpoint to what is no checkpoint: the path is refused, and nothing is removed") {
  const temporary_folder folder;
  const auto notes = folder.path() / "run" / "checkpoints" / "notes.txt";
  std::filesystem::create_directories(notes.parent_path());
  std::ofstream{notes} << "mine";
  for (const auto& path : {folder.path() / "run", notes}) {
    CAPTURE(path);
    CHECK_THAT(saved_to(path), Catch::Contains(path.string() + " holds no checkpoint") &&
                                   Catch::Contains("name a folder"));
    CHECK(std::filesystem::is_regular_file(notes));
  }
}

TEST_CASE("save_checkpoint replaces an empty folder, and a checkpoint") {
  const temporary_folder folder;
  const auto path = folder.path() / "saved";
  std::filesystem::create_directories(path);
  CHECK(saved_to(path) == "nothing");
  std::filesystem::remove(path / "model.safetensors");
  CHECK(saved_to(path) == "nothing");
  CHECK(std::filesystem::exists(path / "model.safetensors"));
}

TEST_CASE("a save_checkpoint that fails leaves nothing of what it wrote") {
  struct one_too_long : one_checkpoint {
    std::vector<checkpoint_file> encode(const snapshot&) const override {
      const auto bytes = std::make_shared<const std::vector<std::byte>>(3);
      return {{"a", {bytes}}, {std::string(300, 'x'), {bytes}}, {commit_file(), {bytes}}};
    }
  };
  const temporary_folder folder;
  const auto path = folder.path() / "best" / "epoch-3";
  CHECK_THAT(saved_to(path, {.checkpoints = std::make_shared<one_too_long>()}),
             Catch::Contains("xxx: File name too long"));
  CHECK(std::filesystem::is_empty(path.parent_path()));
}

TEST_CASE("a job that begins with a fit's weights gets the module's saved text") {
  struct counting : remembering {
    void on_load_checkpoint(const std::string& json) override {
      expect(at().stage == stage::start);
      loaded = json;
    }
    void on_test_start() override { expect(loaded == "3"); }
    void on_train_start() override { expect(loaded.empty() || loaded == "3"); }
    std::string loaded;
  };
  const auto data = std::make_shared<table_data>(30, 4, 8);
  const auto recipe = recipe_for<counting>(data);
  const auto options = quick(2, 3, 3);
  auto taken = run_good_job({.recipe = recipe, .options = options})[0].snapshot;
  run_good_job({.recipe = recipe, .options = options, .purpose = stage::test, .initial = taken});
  run_good_job({.recipe = recipe, .options = options, .initial = taken});
  // A file of weights has no text.
  auto weights = std::make_shared<snapshot>(*taken);
  weights->state.clear();
  run_good_job({.recipe = recipe_for<remembering>(data), .options = options, .initial = weights});
}

TEST_CASE("checks before the start prepare and set up the data before the module") {
  struct ordered_data : table_data {
    using table_data::table_data;
    void prepare_data() override { calls += "p"; }
    void setup(stage) override { calls += "s"; }
    std::string calls;
  };
  const auto data = std::make_shared<ordered_data>(8);
  struct needy : regression {
    explicit needy(std::shared_ptr<ordered_data> of) : of_(std::move(of)) {}
    void prepare_data() override { of_->calls += "P"; }
    void setup(stage) override { of_->calls += "S"; }
    std::shared_ptr<ordered_data> of_;
  };
  auto options = quick(1, 4, 2);
  options.precision = precision_kind::bf16_mixed;
  recipe_for<needy>(data, data)->check_fit(options, nullptr, "");
  CHECK(data->calls == "pPsS");
  struct broken_data : table_data {
    using table_data::table_data;
    void prepare_data() override { throw std::runtime_error("no network\nframe"); }
  };
  try {
    recipe_for<regression>(std::make_shared<broken_data>(8))->check_fit(options, nullptr, "");
    FAIL("no error");
  } catch (const user_error& error) {
    CHECK(error.code() == errc::job_failed);
    CHECK(std::string{error.what()} == "the check before the fit: no network");
  }
}

namespace {

trainer_options logged_fit(std::int64_t steps) {
  auto options = quick(2, 4, steps);
  options.max_epochs = 2;  // of four steps
  options.log_every_n_steps = 1;
  return options;
}

struct logged_run {
  const temporary_folder& home;
  std::string name;

  std::string file() const { return (home.path() / name / "logs" / "metrics.csv").string(); }
  trainer with(trainer_options options, std::optional<std::string> resume = {}) const {
    return trainer{std::move(options),
                   {.run_folder = (home.path() / name).string(),
                    .resume = std::move(resume),
                    .observers = {log_csv(file())}}};
  }
  job_outcome fit(trainer_options options, std::optional<std::string> resume = {}) const {
    return with(std::move(options), std::move(resume))
        .fit<regression>(data_ptr{std::make_shared<table_data>(32, 4, 6)});
  }
};

}  // namespace

TEST_CASE("a fit is resumed or loses a rank: its csv file is that of an undisturbed one", "[csv]") {
  const temporary_folder home;
  const logged_run whole{home, "whole"};
  REQUIRE(whole.fit(logged_fit(8)).ok());
  const auto expected = read_text(whole.file());
  CHECK(parse_metrics(expected).series.size() >= 2);

  const logged_run parts{home, "parts"};
  REQUIRE(parts.fit(logged_fit(6)).ok());
  CHECK(read_text(parts.file()) != expected);
  std::string of_step_4;
  for (const auto& one : std::filesystem::directory_iterator{home.path() / "parts" / "checkpoints"})
    if (one.path().filename().string().ends_with("4")) of_step_4 = one.path().string();
  REQUIRE(!of_step_4.empty());
  REQUIRE(parts.fit(logged_fit(8), of_step_4).ok());
  CHECK(read_text(parts.file()) == expected);

  const logged_run broken{home, "broken"};
  auto options = logged_fit(8);
  options.elastic.max_restarts = 1;
  options.faults = {{.rank = 1, .hook = "backward", .step = 5}};
  const auto recovered = broken.fit(options);
  REQUIRE(recovered.ok());
  CHECK(recovered.restarts == 1);
  CHECK(read_text(broken.file()) == expected);

  // Anew, although there are rows of later steps.
  trainer again{logged_fit(8), {.observers = {log_csv(whole.file())}}};
  REQUIRE(again.fit<regression>(data_ptr{std::make_shared<table_data>(32, 4, 6)}).ok());
  CHECK(read_text(whole.file()) == expected);
}

TEST_CASE("a test adds its row to the csv file of the fit before it", "[csv]") {
  const temporary_folder home;
  const logged_run run{home, "run"};
  const data_ptr data = std::make_shared<table_data>(32, 4, 6);
  auto trainer = run.with(logged_fit(8));
  REQUIRE(trainer.fit<regression>(data).ok());
  const auto fitted = parse_metrics(read_text(run.file()));
  REQUIRE(trainer.test<regression>(data).ok());
  const auto tested = parse_metrics(read_text(run.file()));
  REQUIRE(tested.series.size() == fitted.series.size() + 1);
  CHECK(tested.series.back().name == "test/loss");
  CHECK(tested.series.front().value == fitted.series.front().value);
}

TEST_CASE("a file that cannot be written costs the logger and not the fit", "[csv]") {
  const temporary_folder home;
  write_text(home.path() / "notes", "not a folder");
  auto trainer = troupe::trainer{
      logged_fit(2), {.observers = {log_csv((home.path() / "notes" / "metrics.csv").string())}}};
  const auto outcome = trainer.fit<regression>(data_ptr{std::make_shared<table_data>(32, 4, 6)});
  CHECK(outcome.ok());
  REQUIRE(outcome.late.size() == 1);
  CHECK(outcome.late[0].what.find("notes") != std::string::npos);
}

TEST_CASE("a program writes the files that troupe fit writes and shows its progress", "[csv]") {
  const temporary_folder home;
  const auto folder = home.path().string();
  const auto options = logged_fit(2);
  std::ostringstream screen;

  troupe::job_context around;
  around.observers = {
      troupe::log_csv(folder + "/metrics.csv"),
      troupe::log_tensorboard(folder, {{{"learning_rate", 0.05}}}),
      troupe::log_events(folder + "/events.jsonl"),
      troupe::show_progress(options, std::cerr, STDERR_FILENO),
  };
  troupe::trainer trainer{options, around};

  around.observers.back() = show_progress(options, screen);
  trainer.context() = around;
  REQUIRE(trainer.fit<regression>(data_ptr{std::make_shared<table_data>(32)}).late.empty());
  CHECK(read_text(folder + "/metrics.csv").starts_with("step,epoch,"));
  const auto events = read_text(folder + "/events.jsonl");
  CHECK(events.find("\"stage\":\"train\"") != std::string::npos);
  std::int64_t curves = 0;
  for (const auto& one : std::filesystem::directory_iterator{folder})
    if (one.path().filename().string().starts_with("events.out.tfevents")) {
      ++curves;
      const auto written = read_text(one.path());
      CHECK(written.find("train/loss") != std::string::npos);
      CHECK(written.find("learning_rate") != std::string::npos);
    }
  CHECK(curves == 1);
  CHECK(screen.str().empty());  // a short fit needs no line
}
