// Goal: the snippets of docs/callbacks.md compile, and do in real jobs what the page says. Policies
// given as callbacks are those of the options. A fit of a LibTorch module through the trainer
// writes a program's own checkpoint format, and a fit that resumes through that format ends in the
// bytes of a fit without an interruption. So does a fit on several datasets.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "backends/checkpoint/safetensors_io.hpp"
#include "tests/support/inverted_format.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_recovery/recovering_job.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/data.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/session.hpp"
#include "troupe/trainer.hpp"

#include <boost/asio/system_executor.hpp>

#include "tests/support/catch.hpp"

namespace {

using classifier = troupe::testing::regression;

troupe::job_outcome train(troupe::data_ptr data) {
  using namespace std::chrono_literals;
  troupe::torch_plugins with{
      .callbacks = {troupe::learning_rate_monitor{}, troupe::timer{{.max_time = 2h}}}};
  troupe::trainer trainer{{.ranks = 2, .max_epochs = 3}};
  return trainer.fit<classifier>(with, data);
}

troupe::job averaged_job(troupe::data_ptr data) {
  troupe::torch_plugins with{.callbacks = {troupe::exponential_moving_average{{.decay = 0.99}}}};
  troupe::job job;
  job.options.ranks = 2;
  job.recipe = troupe::recipe_for<classifier>(with, data);
  return job;
}

troupe::torch_plugins with_policies() {
  return {.callbacks = {
              troupe::early_stopping{{.monitor = "val/loss", .min_delta = 100, .patience = 3}},
              troupe::model_checkpoint{{.every_epoch = false, .every_n_steps = 3, .keep_last = 2}},
              troupe::gradient_accumulation_scheduler{{0, 2}, {1, 4}}}};
}

/// Ends the fit after so many steps.
struct short_fit : troupe::callback {
  explicit short_fit(std::int64_t steps) : steps_(steps) {}
  void configure(troupe::trainer_options& options) const override { options.max_steps = steps_; }

private:
  std::int64_t steps_;
};

troupe::callback_factory says_epochs(std::shared_ptr<std::vector<std::string>> into) {
  return troupe::lambda_callback{{.on_train_epoch_end = [=](troupe::module& m, std::int64_t epoch) {
    if (m.rank() == 0) into->push_back("epoch " + std::to_string(epoch));
  }}};
}

/// Ends the run when a loss is higher than `limit` for the second time.
class loss_limit : public troupe::callback {
public:
  explicit loss_limit(double limit) : limit_(limit) {}
  bool reads_gradients() const override { return false; }

  void on_train_batch_end(troupe::module& m, const troupe::step_output& output,
                          const troupe::batch&, std::int64_t) override {
    if (output.has_loss() && output.loss().item<double>() > limit_) ++higher_;
    m.log("higher", static_cast<double>(higher_), {.reduce = troupe::log_reduction::max});
    if (higher_ == 2) m.stop();
  }

  troupe::callback_state save_state() const override {
    return {.json = nlohmann::json(higher_).dump()};
  }
  void load_state(troupe::module&, const troupe::callback_state& from) override {
    higher_ = nlohmann::json::parse(from.json).get<int>();
  }

private:
  double limit_;
  int higher_ = 0;
};

}  // namespace

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("callbacks of a trainer's job log beside the module") {
  const auto outcome = train(std::make_shared<table_data>(512));
  INFO(text_of(outcome.failed_with ? outcome.failed_with->original : nullptr));
  REQUIRE(outcome.ok());
  CHECK(outcome.last.at("lr-SGD") == 0.05);
}

TEST_CASE("callbacks of a session's job change its final weights") {
  const data_ptr data = std::make_shared<table_data>(512);
  session own{boost::asio::system_executor{}};
  const auto averaged = own.run(averaged_job(data));
  REQUIRE(averaged.ok());
  auto plain = averaged_job(data);
  plain.recipe = recipe_for<classifier>(data);
  CHECK(averaged.weights->weights_digest != own.run(plain).weights->weights_digest);
}

TEST_CASE("a lambda callback and a user's callback take part in a job") {
  const auto said = std::make_shared<std::vector<std::string>>();
  torch_plugins with{.callbacks = {says_epochs(said), loss_limit{0}}};
  trainer t{{.ranks = 2, .max_epochs = 3, .batch_size = 8, .log_every_n_steps = 1}};
  const auto outcome = t.fit<classifier>(with, data_ptr{std::make_shared<table_data>(16)});
  REQUIRE(outcome.ok());
  CHECK(outcome.why == stop_reason::hook);
  CHECK(outcome.loop.steps == 2);
  CHECK(outcome.last.at("higher") == 2);
  CHECK(said->front() == "epoch 0");
}

// --- policies as callbacks -----------------------------------------------------------------------

namespace {

/// Fits into folders of their own: 4 batches in each of at most 9 epochs, and a validation.
struct policy_fits {
  temporary_folder folder;
  data_ptr data = std::make_shared<table_data>(32, 4, 8);
  trainer_options options = [] {
    auto all = quick(2, 4, 400);
    all.max_epochs = 9;
    return all;
  }();

  job_outcome run(const std::string& name, const torch_plugins& with, const trainer_options& how,
                  std::optional<std::string> resume = std::nullopt) const {
    trainer by{how, {.run_folder = run_of(name), .resume = std::move(resume)}};
    auto outcome = by.fit<regression>(with, data);
    outcome.rethrow();
    return outcome;
  }
  std::string run_of(const std::string& name) const { return (folder.path() / name).string(); }
  std::set<std::string> kept(const std::string& name) const {
    std::set<std::string> all;
    for (const auto& one :
         std::filesystem::directory_iterator{folder.path() / name / "checkpoints"})
      all.insert(one.path().filename().string());
    return all;
  }
};

/// The same policies as those of with_policies().
trainer_options policies_of(trainer_options all) {
  all.stop_early = {{.monitor = "val/loss", .min_delta = 100, .patience = 3}};
  all.checkpoint = {.every_epoch = false, .every_n_steps = 3, .keep_last = 2};
  all.accumulate_schedule = {{0, 2}, {1, 4}};
  return all;
}

}  // namespace

TEST_CASE("policies given as callbacks are those of the options, also where a rank is lost") {
  policy_fits fits;
  const auto expected = fits.run("options", {}, policies_of(fits.options));
  CHECK(expected.why == stop_reason::early_stopping);
  CHECK(expected.loop.steps == 5);  // 2 in the first epoch, 1 in each of three
  for (const bool lost : {false, true}) {
    CAPTURE(lost);
    const std::string name = lost ? "lost" : "whole";
    auto how = fits.options;
    how.elastic.max_restarts = lost ? 2 : 0;
    if (lost) how.faults = {{.rank = 1, .hook = "training_step", .step = 3}};
    const auto now = fits.run(name, with_policies(), how);
    CHECK(now.restarts == (lost ? 1 : 0));
    CHECK(now.why == expected.why);
    CHECK(now.loop == expected.loop);
    CHECK(now.weights->weights_digest == expected.weights->weights_digest);
    CHECK(fits.kept(name) == fits.kept("options"));
  }
  CHECK(fits.kept("options") ==
        std::set{checkpoint_folder_name(3), checkpoint_folder_name(5), std::string{latest_link}});
  const auto without = fits.run("without", {}, fits.options);
  CHECK(without.loop.steps == 36);
}

TEST_CASE("a resumed fit goes on with the state of a callback that stops early") {
  policy_fits fits;
  const auto whole = fits.run("whole", with_policies(), fits.options);
  auto some = fits.options;
  some.max_steps = 3;  // after two checks
  CHECK(fits.run("parts", with_policies(), some).why == stop_reason::none);
  const auto rest = fits.run("parts", with_policies(), fits.options, "latest");
  CHECK(rest.why == stop_reason::early_stopping);
  CHECK(rest.loop == whole.loop);
  CHECK(rest.weights->weights_digest == whole.weights->weights_digest);
}

TEST_CASE("a callback and an option that contradict each other: the error names both") {
  struct row {
    callback_factory callback;
    std::function<void(trainer_options&)> set;
    std::vector<std::string> parts;
  };
  const early_stopping stops{{.monitor = "a", .patience = 5}};
  const model_checkpoint saves{{.keep_last = 2, .monitor = "a", .maximize = true}};
  const gradient_accumulation_scheduler accumulates{{0, 4}, {4, 2}};
  const std::vector<row> all{
      {stops,
       [](auto& o) {
         o.stop_early = {{.monitor = "b"}, {.monitor = "a"}};
       },
       {"early_stopping: an entry of the option stop_early", "monitors \"a\" with patience 3",
        "this early_stopping with patience 5"}},
      {saves,
       [](auto& o) { o.checkpoint.every_n_steps = 7; },
       {"the option checkpoint.every_n_steps is 7, and that of model_checkpoint is none"}},
      {saves,
       [](auto& o) { o.checkpoint = {.keep_last = 2, .monitor = "a"}; },
       {"the option checkpoint.mode is min, and that of model_checkpoint is max"}},
      {saves,
       [](auto& o) { o.checkpoint.enabled = false; },
       {"the option checkpoint.enabled is false, and that of model_checkpoint is true"}},
      {accumulates,
       [](auto& o) { o.accumulate_grad_batches = 3; },
       {"the option accumulate_grad_batches is 3", "gradient_accumulation_scheduler is 0:4,4:2"}},
      {accumulates,
       [](auto& o) {
         o.accumulate_schedule = {{1, 2}};
       },
       {"the option accumulate_schedule is 1:2", "gradient_accumulation_scheduler is 0:4,4:2"}}};
  for (const auto& [callback, set, parts] : all) {
    trainer_options options;
    set(options);
    torch_plugins with;
    with.callbacks.push_back(callback);
    const auto outcome =
        trainer{options}.fit<regression>(with, data_ptr{std::make_shared<table_data>(16)});
    REQUIRE(outcome.failed_with);
    CHECK(outcome.failed_with->record.code == errc::bad_configuration);
    for (const auto& part : parts)
      CHECK_THAT(outcome.failed_with->record.what, Catch::Contains(part));
    CHECK_THAT(outcome.failed_with->record.what, Catch::Contains("leave one of them out"));
  }
}

TEST_CASE("callbacks agree with equal options, with each other, and with a fast_dev_run") {
  const policy_fits fits;
  const auto with = with_policies();
  auto options = policies_of(fits.options);
  const auto before = options;
  recipe_for<regression>(with, fits.data)->configure(options);
  CHECK(options == before);
  auto dev = fits.options;
  dev.fast_dev_run = 1;
  dev.checkpoint.enabled = false;
  recipe_for<regression>(with, fits.data)->configure(dev);
  CHECK_FALSE(dev.checkpoint.enabled);
  torch_plugins two{
      .callbacks = {early_stopping{{.monitor = "a"}}, early_stopping{{.monitor = "b"}}}};
  recipe_for<regression>(two, fits.data)->configure(dev);
  CHECK(dev.stop_early.size() == 3);
  using schedule = std::map<std::int64_t, std::int64_t>;
  CHECK_THROWS_WITH(gradient_accumulation_scheduler{schedule{}}, Catch::Contains("is empty"));
  CHECK_THROWS_WITH((gradient_accumulation_scheduler{{2, 0}}), Catch::Contains("at least 1"));
  CHECK_THROWS_WITH((gradient_accumulation_scheduler{{-1, 2}}), Catch::Contains("not negative"));
}

TEST_CASE("a program's own callback changes the options of a trainer's and of a session's job") {
  const data_ptr data = std::make_shared<table_data>(64);
  const torch_plugins with{.callbacks = {short_fit{3}}};
  trainer t{{.ranks = 2, .batch_size = 4}};
  CHECK(t.fit<classifier>(with, data).loop.steps == 3);
  session own{boost::asio::system_executor{}};
  job what;
  what.options.batch_size = 4;
  what.recipe = recipe_for<classifier>(with, data);
  CHECK(own.run(what).loop.steps == 3);
  CHECK_FALSE(what.options.max_steps);
}

TEST_CASE("a callback made by a function that would change options is refused") {
  torch_plugins with;
  with.callbacks.emplace_back([] { return std::make_shared<short_fit>(3); });
  trainer t{{.ranks = 2, .batch_size = 4}};
  const auto outcome = t.fit<classifier>(with, data_ptr{std::make_shared<table_data>(64)});
  REQUIRE(outcome.failed_with);
  CHECK_THAT(outcome.failed_with->record.what,
             Catch::Contains("short_fit") && Catch::Contains("give the callback itself"));
}

TEST_CASE("the hooks at the end of a fit know why it ended") {
  policy_fits fits;
  const auto reasons_of = [&](const trainer_options& how, bool stops, bool fails) {
    const auto said = std::make_shared<std::string>();
    const auto says = [said](module& m) {
      if (m.rank() == 0) *said += std::string{to_string(m.why_ended())} + ' ';
    };
    const lambda_callback asks{
        {.teardown = [=](module& m, stage) { says(m); },
         .on_fit_end = says,
         .on_exception = [=](module& m, std::string_view, std::string_view) { says(m); },
         .on_train_end = says,
         .on_train_batch_end =
             [=](module& m, const step_output&, const batch&, std::int64_t) {
               if (m.rank() == 0 && said->empty()) says(m);
               if (stops) m.stop();
               if (fails) throw std::runtime_error("fails");
             }}};
    trainer{how}.fit<regression>(torch_plugins{.callbacks = {asks}}, fits.data);
    return *said;
  };
  const auto early = reasons_of(policies_of(fits.options), false, false);
  CHECK(early == "none early_stopping early_stopping early_stopping ");
  auto two = fits.options;
  two.max_steps = 2;
  CHECK(reasons_of(two, false, false) == "none none none none ");
  CHECK(reasons_of(fits.options, true, false) == "none hook hook hook ");
  CHECK(reasons_of(fits.options, false, true) == "none none none ");
}

// --- a program's own checkpoint format ----------------------------------------------------------

namespace {

struct dropping : regression {
  dropping()
      : regression({.dropout = 0.2, .batch_norm = true, .optimize = [](regression& m) {
                      return optimizers{torch::optim::Adam(m.parameters(), 0.01)};
                    }}) {}
};

}  // namespace

TEST_CASE("a fit of the trainer writes a program's checkpoint format and resumes through it",
          "[session]") {
  const temporary_folder folder;
  const auto format = std::make_shared<inverted_format>();
  torch_plugins plugins;
  plugins.checkpoints = format;
  const auto data = std::make_shared<table_data>(40);
  const auto fitted = [&](std::int64_t steps, const std::string& run, const std::string& resume) {
    job_context where{.run_folder = (folder.path() / run).string()};
    if (!resume.empty()) where.resume = resume;
    auto outcome = trainer{quick(2, 4, steps), where}.fit<dropping>(plugins, data);
    outcome.rethrow();
    return outcome;
  };
  const auto digest = [&](const job_outcome& outcome) {
    return format->read(outcome.last_checkpoint).weights_digest;
  };

  const auto whole = fitted(12, "whole", "");
  const auto half = fitted(7, "parts", "");
  CHECK(format->encoded > 0);
  CHECK_THROWS_AS(safetensors_checkpoints({})->read(half.last_checkpoint), user_error);
  CHECK(digest(half) != digest(whole));
  const auto read_so_far = format->reads.load();
  const auto rest = fitted(12, "parts", "latest");
  CHECK(format->reads >= read_so_far + 2);  // once per rank
  CHECK(rest.loop == whole.loop);
  CHECK(digest(rest) == digest(whole));
}

// --- several datasets ----------------------------------------------------------------------------

namespace {

/// Trains on the members of a combined dataset, of which "more" may be missing.
struct of_both : regression {
  of_both() : regression({.dropout = 0.2}) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    const auto loss = regression::training_step(part_of(b, "some"), index).loss();
    const auto more = part_of(b, "more");
    return more.empty() ? loss : loss + fn::mse_loss(net->forward(more[0]), more[1]);
  }
};

// An epoch of two ranks with batches of 4 has five steps. In them "more" begins anew once or more,
// or ends in the second one.
data_ptr both_sets(combined_mode mode) {
  return make_data(
      {.name = "both",
       .train = combined_dataset({{.name = "some", .data = table_data(36).train()},
                                  {.name = "more", .data = table_data(37).train(), .samples = 3}},
                                 mode)});
}

}  // namespace

TEST_CASE("several datasets: resumed, failed and with fewer ranks, a fit ends in the same bytes",
          "[session]") {
  const auto data = both_sets(GENERATE(combined_mode::max_size_cycle, combined_mode::max_size));
  const temporary_folder folder;
  const auto fitted = [&](const trainer_options& options, const std::string& run,
                          const std::string& resume = {}) {
    job_context where{.run_folder = (folder.path() / run).string()};
    if (!resume.empty()) where.resume = resume;
    auto outcome = trainer{options, where}.fit<of_both>(data);
    outcome.rethrow();
    return outcome;
  };
  const auto whole = fitted(quick(2, 4, 12), "whole");
  CHECK(whole.loop.samples == 36 + 36 + 16);
  const auto same = [&](const job_outcome& other) {
    CHECK(other.loop.samples == whole.loop.samples);
    CHECK(other.weights->weights_digest == whole.weights->weights_digest);
  };
  const auto half = fitted(quick(2, 4, 7), "parts");
  CHECK(half.weights->weights_digest != whole.weights->weights_digest);
  same(fitted(quick(2, 4, 12), "parts", "latest"));
  auto options = quick(2, 4, 12);
  options.elastic.max_restarts = 3;
  options.faults = {{.rank = 1, .hook = "backward", .step = 8}};
  const auto restarted = fitted(options, "restarted");
  CHECK(restarted.restarts == 1);
  same(restarted);
  options = quick(1, 4, 12);
  options.elastic.shards = 2;
  same(fitted(options, "one rank"));
}

TEST_CASE("several datasets: a rank is lost in any hook, and the job ends with the same bits",
          "[session]") {
  const auto recipe = recipe_for<of_both>(both_sets(combined_mode::max_size_cycle));
  const auto options = quick(3, 2, 9);
  const auto undisturbed = run_recovering(recipe, options);
  for (const auto* hook : {"batch_to_device", "training_step", "backward", "on_train_batch_end"})
    for (const std::int64_t step : {2, 5, 6})
      for (const bool lost : {true, false}) {
        CAPTURE(hook, step, lost);
        const injected failure{.rank = 1, .hook = hook, .step = step, .lost = lost};
        const auto now = run_recovering(recipe, options, &failure);
        CHECK(now.digest == undisturbed.digest);
        CHECK(now.rows == undisturbed.rows);
      }
}

TEST_CASE("a data module with a null dataset is refused by its place", "[session]") {
  struct second_is_null : table_data {
    second_is_null() : table_data(16, 4, 8) {}
    std::vector<dataset_ptr> validation() override {
      auto all = table_data::validation();
      all.push_back(nullptr);
      return all;
    }
  };
  const auto ended =
      trainer{quick(1, 4, 2)}.fit<regression>(data_ptr{std::make_shared<second_is_null>()});
  REQUIRE(ended.failed_with);
  CHECK_THAT(ended.failed_with->record.what,
             Catch::Contains("dataset 1 for validate is null: leave it out"));
}

TEST_CASE("a factory that gives two ranks the same module: the fit is refused, one rank trains it",
          "[session]") {
  const auto one = std::make_shared<regression>(regression_choices{});
  session s{boost::asio::system_executor{}};
  job what;
  what.recipe = make_recipe([=] { return one; }, std::make_shared<table_data>(40));
  what.options.max_epochs = 1;
  what.options.ranks = 2;
  const auto shared = s.run(what);
  REQUIRE_FALSE(shared.ok());
  CHECK_THAT(shared.failed_with->record.what, Catch::Contains("a module that another rank trains"));
  what.options.ranks = 1;
  for (int fit = 0; fit < 2; ++fit) CHECK(s.run(what).ok());
}

TEST_CASE("a precision that returns no loss, an environment with an impossible local rank: refused",
          "[session]") {
  struct no_loss : precision {
    at::Tensor pre_backward(const at::Tensor&) override { return {}; }
  };
  struct from_one : local_environment {
    using local_environment::local_environment;
    std::int32_t local_rank() const override { return rank() + 1; }
  };
  const auto why = [](const torch_plugins& plugins, trainer_options options) {
    const auto ended = trainer{std::move(options)}.fit<regression>(
        plugins, data_ptr{std::make_shared<table_data>(16)});
    return ended.failed_with ? ended.failed_with->record.what : "nothing";
  };
  torch_plugins plugins;
  plugins.precisions["none"] = [] { return std::make_unique<no_loss>(); };
  auto options = quick(2, 4, 1);
  options.precision = own_name{"none"};
  CHECK_THAT(why(plugins, options), Catch::Contains("returned no loss"));
  plugins.environment = [](const learner_context& about) {
    return std::make_shared<from_one>(about.rank, about.world);
  };
  CHECK_THAT(why(plugins, quick(2, 4, 1)), Catch::Contains("says local rank 2 in a world of 2"));
}

TEST_CASE("a strategy that saves nothing on rank 0, or a tensor without bytes, fails the fit",
          "[session]") {
  struct saves_nothing : data_parallel {
    using data_parallel::data_parallel;
    snapshot_ptr save_checkpoint(snapshot_ptr, const std::string&, const value&) override {
      return nullptr;
    }
  };
  struct saves_no_bytes : data_parallel {
    using data_parallel::data_parallel;
    std::vector<tensor_blob> module_state() override {
      return {{.name = "weight", .dtype = "F32", .shape = {1}, .bytes = nullptr}};
    }
  };
  torch_plugins plugins;
  plugins.strategies["nothing"] = [](strategy_parts parts) {
    return std::make_unique<saves_nothing>(std::move(parts));
  };
  plugins.strategies["no_bytes"] = [](strategy_parts parts) {
    return std::make_unique<saves_no_bytes>(std::move(parts));
  };
  const auto [strategy, why] =
      GENERATE(table<std::string, std::string>({{"nothing", "returned no state on rank 0"},
                                                {"no_bytes", "the tensor weight has no bytes"}}));
  const temporary_folder folder;
  auto options = quick(2, 4, 3);
  options.strategy = own_name{strategy};
  const auto ended = trainer{options, {.run_folder = folder.path().string()}}.fit<regression>(
      plugins, data_ptr{std::make_shared<table_data>(16)});
  REQUIRE(ended.failed_with);
  CHECK_THAT(ended.failed_with->record.what, Catch::Contains(why));
  CHECK(ended.failed_with->record.type == "troupe::user_error");
}

TEST_CASE("an evaluation after a fit that kept no weights is refused, unless it resumes") {
  const data_ptr data = std::make_shared<table_data>(16);
  trainer t{{.ranks = 1, .max_epochs = 1, .batch_size = 4, .checkpoint = {.enabled = false}}};
  REQUIRE(t.fit<regression>(data).ok());
  const auto refused = t.test<regression>(data);
  REQUIRE(refused.failed_with);
  CHECK_THAT(refused.failed_with->record.what, Catch::Contains("leave it true, and run_folder"));
  t.context().resume = "/no/such/checkpoint";
  CHECK(t.test<regression>(data).failed_with->record.code == errc::checkpoint);
}
