// Goal: the states of callbacks are saved with checkpoints, loaded by a resumed fit, and exact in
// jobs that lose ranks. A fit that fails saves its last step with them
// (checkpoint_policy::on_exception), and a resume ends in the bits of a fit that did not fail.
// A fit that goes on from a checkpoint that a module asked for repeats what was due after its step.
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/support/one_checkpoint.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_callbacks/listeners.hpp"
#include "tests/unit/torch_callbacks/resumed.hpp"
#include "tests/unit/torch_recovery/recovering_job.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// What the ranks' callbacks end with, by rank.
struct last_states {
  std::mutex guard;
  std::map<std::int32_t, std::string> by_rank;
};

/// Counts batches that began and ended; sums the steps in a tensor.
struct counts : callback {
  explicit counts(std::shared_ptr<last_states> last = nullptr) : last_(std::move(last)) {}
  std::string state_key() const override { return "counts"; }
  bool reads_gradients() const override { return false; }
  void on_train_batch_start(module& m, const batch&, std::int64_t) override {
    ++began_;
    m.log("began", static_cast<double>(began_), {.reduce = log_reduction::max});
  }
  void on_train_batch_end(module& m, const step_output&, const batch&, std::int64_t) override {
    ++ended_;
    steps_ += m.at().step;
  }
  void on_validation_start(module&) override { ++ended_; }
  void on_train_end(module& m) override {
    if (!last_) return;
    const std::lock_guard lock{last_->guard};
    last_->by_rank[m.rank()] = text();
  }
  std::string text() const {
    return "[" + std::to_string(began_) + "," + std::to_string(ended_) + "," +
           std::to_string(steps_.item<std::int64_t>()) + "]";
  }
  callback_state save_state() const override {
    return {.json = text(), .tensors = {{"steps", steps_}}};
  }
  void load_state(module&, const callback_state& from) override {
    if (std::sscanf(from.json.c_str(), "[%d,%d,", &began_, &ended_) != 2)
      throw std::runtime_error("not a state: " + from.json);
    steps_ = from.tensors.at("steps");
  }

private:
  std::shared_ptr<last_states> last_;
  int began_ = 0;
  int ended_ = 0;
  at::Tensor steps_ = at::zeros({}, at::kLong);
};

torch_plugins with(std::vector<callback_factory> callbacks) {
  torch_plugins plugins;
  plugins.callbacks = std::move(callbacks);
  return plugins;
}

// Each copy begins with a tensor of its own.
callback_factory counting(std::shared_ptr<last_states> last = nullptr) {
  return [=] { return std::make_shared<counts>(last); };
}

}  // namespace

TEST_CASE("a resumed fit goes on with the states of its callbacks") {
  const data_ptr data = std::make_shared<table_data>(30, 4, 8);
  const auto options = quick(2, 3, 13);  // 5 steps per epoch
  const auto whole = run_good_job(
      {.recipe = recipe_for<regression>(with({counting()}), data), .options = options});
  const auto cut = GENERATE(3, 5, 8);
  const auto last = std::make_shared<last_states>();
  const auto half = run_good_job(
      {.recipe = recipe_for<regression>(with({counting()}), data), .options = until(options, cut)});
  const auto rest = resumed<regression>(half[0].snapshot, with({counting(last)}), data, options);
  CAPTURE(cut);
  CHECK(whole[0].snapshot->state == rest[0].snapshot->state);
  CHECK(whole[0].snapshot->state.find("counts") != std::string::npos);
  CHECK(bytes_of(whole[0].snapshot->optimizer) == bytes_of(rest[0].snapshot->optimizer));
  REQUIRE(last->by_rank.size() == 2);  // 13 batches and 2 validations, 1 + ... + 13
  for (const auto& [rank, text] : last->by_rank) CHECK(text == "[13,15,91]");
}

TEST_CASE("a fit resumes with other callbacks than its checkpoint was made with") {
  const data_ptr data = std::make_shared<table_data>(30);
  const auto options = quick(2, 3, 8);
  const auto with_state = run_good_job(
      {.recipe = recipe_for<regression>(with({counting()}), data), .options = until(options, 4)});
  const auto without = resumed<regression>(with_state[0].snapshot, {}, data, options);
  CHECK(without[0].snapshot->state.find("counts") == std::string::npos);
  for (const auto& blob : without[0].snapshot->optimizer)
    CHECK_FALSE(blob.name.starts_with("callbacks/"));
  const auto last = std::make_shared<last_states>();
  resumed<regression>(until_step<regression>(data, options, 4), with({counting(last)}), data,
                      options);
  CHECK(last->by_rank.at(0) == "[4,4,26]");  // new, from step 5 on
}

TEST_CASE("two callbacks with states under one key are a user_error that names it") {
  const auto ends =
      run_job({.recipe = recipe_for<regression>(with({counting(), counting()}),
                                                data_ptr{std::make_shared<table_data>(16)}),
               .options = quick(2, 4, 2)});
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("another callback has a state under the key "
                                                     "counts, too: override state_key"));
}

// --- jobs that lose ranks ------------------------------------------------------------------------

namespace {

recovered_job recovering(const std::vector<callback_factory>& callbacks,
                         const injected* failure = nullptr) {
  auto options = quick(3, 4, 9);  // epochs of 4 steps, with a validation
  options.log_every_n_steps = 1;
  return run_recovering(
      recipe_for<regression>(with(callbacks), data_ptr{std::make_shared<table_data>(42, 4, 6)}),
      options, failure);
}

constexpr const char* hooks_of_a_step[] = {
    "batch_to_device", "on_train_batch_start", "optimizer_step",    "training_step",
    "backward",        "on_after_backward",    "on_train_batch_end"};

}  // namespace

TEST_CASE("a failure in any hook of a step: the callbacks' states are exact", "[recovery]") {
  const auto states = std::make_shared<last_states>();
  const auto undisturbed = recovering({counting(states)});
  REQUIRE(states->by_rank == std::map<std::int32_t, std::string>{
                                 {0, "[9,11,45]"}, {1, "[9,11,45]"}, {2, "[9,11,45]"}});
  const auto expected = states->by_rank;
  for (const auto* hook : hooks_of_a_step)
    for (const bool lost : {true, false}) {
      CAPTURE(hook, lost);
      states->by_rank.clear();
      const injected failure{.rank = 1, .hook = hook, .step = 3, .lost = lost};
      const auto now = recovering({counting(states)}, &failure);
      CHECK(states->by_rank == expected);
      CHECK(now.digest == undisturbed.digest);
      CHECK(now.generations == 2);
      // The failing rank's callback has not seen the end of its step.
      const bool behind = std::string_view{hook} == "on_train_batch_end";
      CHECK(now.survivors_with_state == (lost || behind ? 2 : 3));
    }
}

TEST_CASE("a rank is lost in a validation: the callbacks' states are exact", "[recovery]") {
  const auto states = std::make_shared<last_states>();
  recovering({counting(states)});
  const auto expected = states->by_rank;
  for (const auto* hook :
       {"on_train_epoch_end", "on_validation_start", "validation_step", "on_train_epoch_start"}) {
    CAPTURE(hook);
    states->by_rank.clear();
    const injected failure{.rank = 0, .hook = hook, .step = 4};
    CHECK(recovering({counting(states)}, &failure).generations == 2);
    CHECK(states->by_rank == expected);
  }
}

TEST_CASE("a job with averaged weights that loses a rank ends in the same bits", "[recovery]") {
  const std::vector<callback_factory> callbacks{exponential_moving_average{{.decay = 0.8}}};
  const auto undisturbed = recovering(callbacks);
  CHECK(undisturbed.rows != recovering({}).rows);  // the validations' values differ
  for (const auto* hook : {"training_step", "on_train_batch_end", "on_validation_start",
                           "validation_step", "on_validation_epoch_end", "on_save_checkpoint"})
    for (const std::int32_t rank : {0, 1}) {
      CAPTURE(hook, rank);
      const injected failure{.rank = rank, .hook = hook, .step = 4};
      const auto now = recovering(callbacks, &failure);
      CHECK(now.digest == undisturbed.digest);
      CHECK(now.rows == undisturbed.rows);
      CHECK(now.survivors_with_state == 2);
    }
}

namespace {

/// Where a rank throws, once in a fit.
struct place {
  std::int32_t rank = 1;
  std::string hook;
  std::int64_t step = 0;
};

/// Dropout, batch norm, Adam with a schedule; a value of the epoch.
struct failing_once : regression {
  explicit failing_once(place where)
      : regression({.dropout = 0.2,
                    .batch_norm = true,
                    .optimize =
                        [](regression& self) {
                          return optimizers{torch::optim::Adam(self.parameters(), 0.01)}
                              .scheduled<torch::optim::StepLR>({.every = schedule::interval::step},
                                                               2, 0.9);
                        }}),
        where_(std::move(where)) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    fail_in("training_step");
    const auto output = regression::training_step(b, index);
    log("train/of_epoch", output.loss(), {.on_step = false, .on_epoch = true});
    return output;
  }
  void on_before_optimizer_step(torch::optim::Optimizer&) override {
    fail_in("on_before_optimizer_step");
  }
  void lr_scheduler_step(scheduler& which, std::optional<double> metric) override {
    fail_in("lr_scheduler_step");
    regression::lr_scheduler_step(which, metric);
  }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    fail_in("on_train_batch_end");
  }
  void fail_in(std::string_view hook) const {
    if (rank() == where_.rank && at().step == where_.step && hook == where_.hook)
      throw std::runtime_error("injected");
  }

private:
  place where_;
};

job_outcome fit_in(const trainer_options& options, const std::string& folder, place where = {},
                   std::optional<std::string> resume = std::nullopt) {
  trainer_options all = options;
  trainer by{all, {.run_folder = folder, .resume = std::move(resume)}};
  const torch_plugins with{.callbacks = {exponential_moving_average{{.decay = 0.9}}}};
  return by.fit<failing_once>(with, data_ptr{std::make_shared<table_data>(48, 4, 6)},
                              std::move(where));
}

trainer_options four_batches_an_epoch() {
  auto options = quick(2, 6, 7);
  options.log_every_n_steps = 1;
  options.checkpoint.on_exception = true;
  return options;
}

}  // namespace

TEST_CASE("a fit that fails saves its last step, from which it resumes to the same bits") {
  const temporary_folder folder;
  const auto options = four_batches_an_epoch();
  auto plain = options;
  plain.checkpoint.on_exception = false;
  const auto whole = fit_in(plain, (folder.path() / "whole").string());
  REQUIRE(whole.ok());
  struct row {
    place where;
    std::int64_t saved;
  };
  for (const auto& [where, saved] :
       {row{{1, "training_step", 6}, 6}, row{{0, "training_step", 5}, 5},
        row{{1, "on_before_optimizer_step", 3}, 3}, row{{0, "on_before_optimizer_step", 6}, 6},
        row{{0, "on_train_batch_end", 5}, 5}, row{{1, "on_train_batch_end", 1}, 1}}) {
    CAPTURE(where.rank, where.hook, where.step);  // on_train_batch_end counts its step
    const auto run = (folder.path() / (where.hook + std::to_string(where.rank))).string();
    const auto failed = fit_in(options, run, where);
    CHECK(failed.failed_with->record.what == "injected");
    CHECK_THAT(failed.last_checkpoint, Catch::EndsWith(checkpoint_folder_name(saved)));
    CHECK(failed.loop.steps == saved);
    CHECK(failed.loop.samples == 12 * saved);
    const auto rest = fit_in(options, run, {}, "latest");
    REQUIRE(rest.ok());
    CHECK(rest.weights->weights_digest == whole.weights->weights_digest);
    CHECK(rest.last == whole.last);
  }
}

TEST_CASE("a fit that fails saves nothing: without the option, and where weights are torn") {
  const temporary_folder folder;
  auto options = four_batches_an_epoch();
  const auto torn = fit_in(options, (folder.path() / "torn").string(), {0, "lr_scheduler_step", 2});
  CHECK(torn.last_checkpoint.empty());
  options.checkpoint.on_exception = false;
  const auto off = fit_in(options, (folder.path() / "off").string(), {1, "training_step", 2});
  CHECK(off.last_checkpoint.empty());
}

namespace {

/// What may be wrong with a fit whose schedules move by epoch, or by a validation.
struct defect {
  std::string plateau = "train/of_epoch", stop_early = "train/of_epoch";
  std::int64_t fails_at = -1;  // this batch of the first epoch
};

struct by_epoch : regression {
  explicit by_epoch(const defect& what)
      : regression({.optimize =
                        [what](regression& self) {
                          return optimizers{torch::optim::SGD(self.parameters(), 0.1)}
                              .scheduled<torch::optim::StepLR>({}, 2, 0.5)
                              .scheduled(schedules::reduce_on_plateau{.factor = 0.9, .patience = 1},
                                         {.monitor = what.plateau});
                        }}),
        fails_at(what.fails_at) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    if (rank() == 1 && at().epoch == 0 && index == fails_at) throw std::runtime_error("injected");
    const auto output = regression::training_step(b, index);
    log("train/of_epoch", output.loss(), {.on_step = false, .on_epoch = true});
    return output;
  }
  std::int64_t fails_at;
};

}  // namespace

TEST_CASE("a fit fails after a schedule has moved: its last step is saved as it was") {
  const defect bad =
      GENERATE(defect{.stop_early = "train/of_epohc"}, defect{.plateau = "train/of_epohc"},
               defect{.plateau = "val/loss", .fails_at = 3});
  CAPTURE(bad.plateau, bad.stop_early, bad.fails_at);
  const defect good{.plateau = bad.fails_at < 0 ? "train/of_epoch" : "val/loss"};
  const temporary_folder folder;
  auto options = four_batches_an_epoch();
  options.max_steps = 12;
  options.accumulate_grad_batches = bad.fails_at < 0 ? 1 : 2;
  if (bad.fails_at >= 0) options.val_check_interval = std::int64_t{1};  // also inside a step
  const auto fit = [&](const defect& what, const char* run, std::optional<std::string> resume) {
    options.stop_early = {{.monitor = what.stop_early, .patience = 99}};
    trainer by{options, {.run_folder = (folder.path() / run).string(), .resume = resume}};
    return by.fit<by_epoch>(data_ptr{std::make_shared<table_data>(48, 4, 6)}, what);
  };
  const auto whole = fit(good, "whole", {});
  REQUIRE(whole.ok());
  const auto failed = fit(bad, "run", {});
  CHECK_FALSE(failed.ok());
  CHECK_THAT(failed.last_checkpoint,
             Catch::EndsWith(checkpoint_folder_name(bad.fails_at < 0 ? 4 : 1)));
  const auto rest = fit(good, "run", "latest");
  REQUIRE(rest.ok());
  CHECK(rest.weights->weights_digest == whole.weights->weights_digest);
  CHECK(rest.last == whole.last);
}

namespace {

/// One layer, used twice in forward. `names`: it is registered under that many.
struct tied : regression {
  explicit tied(int names)
      : regression(
            {.optimize = [](regression& self) { return torch::optim::Adam(self.parameters()); }}) {
    register_module("first", layer);
    if (names > 1) register_module("second", layer);
  }
  step_output training_step(const batch& b, std::int64_t) override {
    const auto once = torch::tanh(layer->forward(b[0]));
    return torch::mse_loss(net->forward(layer->forward(once)), b[1]);
  }
  torch::nn::Linear layer{4, 4};
};

snapshot_ptr fit_tied(const std::string& folder, int names, std::int64_t steps,
                      std::optional<std::string> resume = std::nullopt) {
  trainer by{quick(2, 6, steps), {.run_folder = folder, .resume = std::move(resume)}};
  const auto ended = by.fit<tied>(data_ptr{std::make_shared<table_data>(48, 4, 6)}, names);
  INFO(text_of(ended.failed_with ? ended.failed_with->original : nullptr));
  REQUIRE(ended.ok());
  return ended.weights;
}

bool equal(const snapshot& a, const snapshot& b, const std::string& of, const std::string& in) {
  const auto bytes = [](const snapshot& from, const std::string& name) {
    return *std::ranges::find(from.model, name, &tensor_blob::name)->bytes;
  };
  return bytes(a, of) == bytes(b, in);
}

}  // namespace

TEST_CASE("a layer with two names is trained as with one, and resumes to the same bits") {
  const temporary_folder folder;
  const auto at = [&](const char* name) { return (folder.path() / name).string(); };
  const auto once = fit_tied(at("once"), 1, 8), whole = fit_tied(at("twice"), 2, 8);
  for (const std::string part : {".weight", ".bias"})
    for (const std::string name : {"first", "second"})
      CHECK(equal(*once, *whole, "first" + part, name + part));
  fit_tied(at("parts"), 2, 5);
  CHECK(fit_tied(at("parts"), 2, 8, "latest")->weights_digest == whole->weights_digest);
}

TEST_CASE("an optimizer with a parameter in two groups is refused") {
  const auto layer = torch::nn::Linear(4, 4);
  const auto groups = [&](const std::vector<at::Tensor>& second) {
    return std::make_shared<torch::optim::SGD>(
        std::vector<torch::optim::OptimizerParamGroup>{layer->parameters(), second},
        torch::optim::SGDOptions(0.1));
  };
  optimizers of;
  CHECK_THROWS_WITH(of.add(groups({layer->bias})),
                    Catch::Contains("groups 0 and 1") && Catch::Contains("of shape (4)"));
  CHECK_NOTHROW(of.add(groups({torch::zeros({2})})));
}

TEST_CASE("a trainer's evaluation after its fit gets the text that the module saved") {
  struct counting : regression {
    std::string on_save_checkpoint() override { return std::to_string(at().step); }
    void on_load_checkpoint(const std::string& json) override { loaded = json; }
    void on_test_end() override { expect(loaded == "4"); }
    void on_fit_start() override { fits = true; }
    void on_validation_end() override { expect(fits || loaded == "4"); }
    void on_predict_end() override { expect(loaded == "4"); }
    bool fits = false;
    std::string loaded;
  };
  const auto data = std::make_shared<table_data>(16, 4, 8);
  trainer runs{{.ranks = 2, .max_epochs = 2, .batch_size = 4}};
  CHECK(runs.fit<counting>(data).ok());
  for (const auto& outcome :
       {runs.test<counting>(data), runs.validate<counting>(data), runs.predict<counting>(data)})
    CHECK_NOTHROW(outcome.rethrow());
}

TEST_CASE("a timer of a rank that joins goes on from the time that the others had") {
  struct joins_late : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      if (at().step == 1) late.load_state(*this, {.json = R"({"elapsed_ns": 9000000000})"});
      if (at().step == 2) late.load_state(*this, {.json = R"({"elapsed_ns": 1000000000})"});
      return regression::training_step(b, index);
    }
    void on_train_start() override { late.on_train_start(*this); }
    void on_train_end() override {
      const auto state = nlohmann::json::parse(late.save_state().json);
      expect(state.at("elapsed_ns") >= 9'000'000'000 && state.at("elapsed_ns") < 20'000'000'000);
    }
    timer late{
        {.max_time = std::chrono::hours{1}, .now = [now = std::chrono::nanoseconds{0}]() mutable {
           return now += std::chrono::seconds{1};
         }}};
  };
  run_good_job({.recipe = recipe_for<joins_late>(std::make_shared<table_data>(32)),
                .options = quick(2, 4, 4)});
}

// --- checkpoints that a module asks for ---------------------------------------------------------

namespace {

/// Keeps the snapshot that a module wants saved in place of a file.
struct keeps_wanted : data_parallel {
  keeps_wanted(strategy_parts parts, std::shared_ptr<snapshot_ptr> to)
      : data_parallel(std::move(parts)), to_(std::move(to)) {}
  snapshot_ptr save_checkpoint(snapshot_ptr what, const std::string& path, const value&) override {
    if (!path.empty() && rank() == 0) *to_ = what;
    return what;
  }
  std::shared_ptr<snapshot_ptr> to_;
};

/// Logs a value by epoch. Stops after one step, and asks for a checkpoint after another one.
struct asking : regression {
  explicit asking(std::int64_t save_at, std::int64_t stop_at = -1)
      : save_at_(save_at), stop_at_(stop_at) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    log("by_epoch", static_cast<double>(at().step + 1), {.on_epoch = true});
    log("largest", static_cast<double>(at().step + 1),
        {.on_step = false, .on_epoch = true, .reduce = log_reduction::max});
    return regression::training_step(b, index);
  }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    if (at().step == stop_at_) stop();
    if (at().step == save_at_) save_checkpoint("there");
  }
  void on_train_end() override {
    if (save_at_ == 0) save_checkpoint("there");
  }
  std::int64_t save_at_, stop_at_;
};

recipe_ptr asking_recipe(const asking& like, const snapshot_ptr& from,
                         const std::shared_ptr<snapshot_ptr>& kept) {
  torch_plugins plugins;
  plugins.checkpoints = std::make_shared<one_checkpoint>(from);
  plugins.strategies["keeps"] = [=](strategy_parts parts) {
    return std::make_unique<keeps_wanted>(std::move(parts), kept);
  };
  return make_recipe(
      [save = like.save_at_, stop = like.stop_at_] { return std::make_shared<asking>(save, stop); },
      std::make_shared<table_data>(30, 4, 12), plugins);
}

/// Two ranks with five steps in an epoch. `wanted` gets what the module saves.
rank_end asking_fit(trainer_options options, const asking& like, const snapshot_ptr& from = {},
                    snapshot_ptr* wanted = nullptr) {
  const auto kept = std::make_shared<snapshot_ptr>();
  options.strategy = own_name{"keeps"};
  const auto* resume = from ? "here" : "";
  const auto recipe = asking_recipe(like, from, kept);
  auto end = run_good_job({.recipe = recipe, .options = options, .resume = resume})[0];
  if (wanted) *wanted = *kept;
  return end;
}

std::int64_t validations_in(const rank_end& end) {
  return std::ranges::count_if(end.hooks,
                               [](const hook& h) { return h.is<hooks::on_validation_start>(); });
}

}  // namespace

TEST_CASE("a module saves in a fit that resumed after a validation: the next one is not skipped") {
  auto options = quick(2, 3, 2);
  options.val_check_interval = std::int64_t{1};
  const auto first = asking_fit(options, asking{-1}).snapshot;
  REQUIRE(first->loop.validated);
  options.max_steps = 4;
  snapshot_ptr wanted;
  const auto second = asking_fit(options, asking{3}, first, &wanted);
  CHECK(validations_in(second) == 2);
  REQUIRE(wanted);
  CHECK(wanted->loop.steps == 3);
  options.max_steps = 5;
  const auto third = asking_fit(options, asking{-1}, wanted);
  CHECK(validations_in(third) == 3);  // after steps 3, 4 and 5
}

TEST_CASE("a module saves while a stop waits for min_steps: a fit that resumes from it stops") {
  auto options = quick(2, 3, 20);
  options.min_steps = 7;
  const auto stops_at = GENERATE(2, 3);
  CAPTURE(stops_at);
  snapshot_ptr wanted;
  CHECK(asking_fit(options, asking{3, stops_at}, {}, &wanted).loop.steps == 7);
  REQUIRE(wanted);
  CHECK(wanted->loop.steps == 3);
  CHECK(asking_fit(options, asking{5}, wanted, &wanted).loop.steps == 7);
  CHECK(wanted->loop.steps == 5);  // in a fit that began with the stop
  CHECK(asking_fit(options, asking{-1}, wanted).loop.steps == 7);
}

TEST_CASE("a module saves after rank 0 was replaced: the checkpoint has a stop that waits",
          "[recovery]") {
  auto options = quick(2, 3, 20);
  options.min_steps = 8;
  options.strategy = own_name{"keeps"};
  const auto kept = std::make_shared<snapshot_ptr>();
  const auto recipe = asking_recipe(asking{6, 3}, nullptr, kept);
  const injected failure{.rank = 0, .hook = "training_step", .step = 5};
  CHECK(run_recovering(recipe, options, &failure).steps == 8);
  REQUIRE(*kept);
  CHECK((*kept)->loop.steps == 6);
  CHECK((*kept)->loop.pending_stop == static_cast<std::uint8_t>(stop_reason::hook));
}

TEST_CASE("a module saves at the end of a fit that a stop ended: a fit that resumes goes on") {
  auto options = quick(2, 3, 12);
  options.min_steps = GENERATE(0, 7);
  snapshot_ptr wanted;
  const auto end = asking_fit(options, asking{0, 3}, {}, &wanted);
  CHECK(end.loop.steps < 12);
  REQUIRE(wanted);
  CHECK(asking_fit(options, asking{-1}, wanted).loop.steps == 12);
}

TEST_CASE("a module saves at the end of a fit inside an epoch: the epoch's values go on") {
  auto options = quick(2, 3, 5);
  options.max_epochs = 1;
  const auto whole = asking_fit(options, asking{-1});
  CHECK(whole.loop.last.at("by_epoch_epoch") == 3);
  options.max_steps = 3;
  snapshot_ptr wanted;
  CHECK(asking_fit(options, asking{0}, {}, &wanted).loop.last.at("by_epoch_epoch") == 2);
  REQUIRE(wanted);
  options.max_steps = 5;
  const auto rest = asking_fit(options, asking{-1}, wanted);
  CHECK(rest.loop.last == whole.loop.last);
  CHECK(rest.snapshot->state == whole.snapshot->state);
}
