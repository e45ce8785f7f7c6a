// Goal: every hook is called on callbacks in Lightning's order, in each rank's lane. A callback's
// hook can log, ask for a stop and use collectives, as a module's hook can. Texts make callbacks.
#include <mutex>

#include "backends/checkpoint/run_checkpoints.hpp"
#include "backends/torch/callback_catalog.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_callbacks/listeners.hpp"
#include "tests/unit/torch_callbacks/resumed.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using texts = std::vector<std::string>;

// Two callbacks on rank 0, a module and a strategy with one diary.
test_job noting_job(const diary_ptr& said, data_ptr data, stage purpose = stage::train) {
  torch_plugins plugins;
  for (const auto* name : {"first", "second"})
    plugins.callbacks.emplace_back([=](const learner_context& about) {
      return about.rank == 0 ? std::make_shared<noting_callback>(name, said)
                             : std::make_shared<noting_callback>(name, std::make_shared<texts>());
    });
  plugins.strategies["noting"] = [=](strategy_parts parts) {
    return std::make_unique<noting_strategy>(std::move(parts), said);
  };
  auto options = quick(2, 2, 1);
  options.num_sanity_val_steps = 1;
  options.max_epochs = 1;
  options.strategy = own_name{"noting"};
  return {.recipe = make_recipe([=] { return std::make_shared<noting_module>(said); },
                                std::move(data), plugins),
          .options = options,
          .purpose = purpose};
}

// Each hook as it is called on all of them, in order.
void expect(texts& into, std::initializer_list<const char*> hooks,
            const texts& listeners = {"first", "second", "module", "strategy"}) {
  for (const std::string hook : hooks)
    for (const auto& who : listeners) into.push_back(who + ":" + hook);
}

texts evaluation(const std::string& of) {
  texts all;
  for (const auto* hook : {"start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end"})
    for (const auto* who : {"first", "second", "module", "strategy"})
      all.push_back(std::string{who} + ":on_" + of + "_" + hook);
  return all;
}

}  // namespace

TEST_CASE("a hook of a fit is called on callbacks, then the module, then the strategy") {
  const auto said = std::make_shared<texts>();
  run_good_job(noting_job(said, std::make_shared<table_data>(4, 4, 2)));
  const texts not_the_strategy{"first", "second", "module"};
  const auto validation = evaluation("validation");
  texts expected;
  const auto validate = [&] {
    expected.insert(expected.end(), validation.begin(), validation.end());
  };
  expect(expected, {"setup", "on_fit_start", "on_sanity_check_start"});
  validate();
  expect(expected,
         {"on_sanity_check_end", "on_train_start", "on_train_epoch_start", "on_train_batch_start"});
  expect(expected,
         {"on_before_zero_grad", "on_before_backward", "on_after_backward",
          "on_before_optimizer_step"},
         not_the_strategy);
  expect(expected, {"on_train_batch_end"});
  validate();
  expect(expected, {"on_train_epoch_end"});
  expect(expected, {"on_save_checkpoint"}, not_the_strategy);
  expect(expected, {"on_checkpoint_taken"}, {"first", "second"});
  expect(expected, {"on_train_end", "on_fit_end"});
  expect(expected, {"teardown"}, not_the_strategy);
  CHECK(*said == expected);
}

TEST_CASE("an evaluation calls callbacks before the module and the strategy after it") {
  const auto purpose = GENERATE(stage::validate, stage::test, stage::predict);
  const auto said = std::make_shared<texts>();
  run_good_job(noting_job(said, std::make_shared<table_data>(4, 4, 2), purpose));
  const auto body = evaluation(purpose == stage::validate ? "validation"
                               : purpose == stage::test   ? "test"
                                                          : "predict");
  texts expected;
  expect(expected, {"setup"});
  expected.insert(expected.end(), body.begin(), body.end());
  expect(expected, {"teardown"}, {"first", "second", "module"});
  CHECK(*said == expected);
}

namespace {

struct watcher : callback {
  explicit watcher(std::shared_ptr<std::vector<double>> seen) : seen_(std::move(seen)) {}
  bool monitors() const override { return true; }
  void on_train_epoch_end(module& m, std::int64_t epoch) override {
    m.log("watched", m.logged().at("of epoch") + 1);
    if (m.rank() == 1) seen_->push_back(m.logged().at("of epoch"));
    if (m.rank() == 1 && epoch == 1) m.stop();
  }
  std::shared_ptr<std::vector<double>> seen_;
};

struct logs_at_epoch_end : regression {
  void on_train_epoch_end(std::int64_t epoch) override {
    log("of epoch", static_cast<double>(epoch * 10 + rank()));
  }
};

}  // namespace

TEST_CASE("a callback that monitors sees the epoch's values, and its own are reported") {
  const auto seen = std::make_shared<std::vector<double>>();
  torch_plugins plugins;
  plugins.callbacks = {watcher{seen}};
  auto options = quick(2, 4, 99);
  const auto ends = run_good_job(
      {.recipe = recipe_for<logs_at_epoch_end>(plugins, data_ptr{std::make_shared<table_data>(16)}),
       .options = options});
  CHECK(*seen == std::vector{0.5, 10.5});
  for (const auto& end : ends) {
    CHECK(end.loop.last.at("watched") == 11.5);
    CHECK(end.why == stop_reason::hook);
    CHECK(end.loop.steps == 4);
  }
}

namespace {

/// Counts in its lane; a copy per rank begins at 0.
struct stops_after : callback {
  explicit stops_after(std::int64_t batches) : left(batches) {}
  void on_train_batch_end(module& m, const step_output&, const batch&, std::int64_t) override {
    m.log("left", static_cast<double>(--left));
    if (left == 0 && m.rank() == 1) m.stop();
  }
  std::int64_t left;
};

template <class Thrown>
struct throws_in_lane : callback {
  explicit throws_in_lane(Thrown what) : what_(std::move(what)) {}
  std::string state_key() const override { return "careless"; }
  void on_train_batch_start(module& m, const batch&, std::int64_t) override {
    if (m.rank() == 1 && m.at().step == 1) throw what_;
  }
  Thrown what_;
};

std::vector<rank_end> run_with(callback_factory one, trainer_options options) {
  torch_plugins plugins;
  plugins.callbacks.push_back(std::move(one));
  return run_job(
      {.recipe = recipe_for<regression>(plugins, data_ptr{std::make_shared<table_data>(32)}),
       .options = std::move(options)});
}

}  // namespace

TEST_CASE("a stop by a callback of one rank ends all ranks at the same step") {
  auto options = quick(2, 4, 99);
  options.log_every_n_steps = 1;
  const auto ends = run_with(stops_after{3}, options);
  for (const auto& end : ends) {
    // Rank 1 says so after step 3, with the gradients of step 4.
    CHECK(end.loop.steps == 4);
    CHECK(end.why == stop_reason::hook);
    CHECK(end.loop.last.at("left") == -1);
  }
}

TEST_CASE("an exception of a callback is the rank's failure and names the callback") {
  const auto options = quick(2, 4, 4);
  const auto ends = run_with(throws_in_lane{std::out_of_range{"no such row"}}, options);
  CHECK(ends[1].record.type == "troupe::callback_failed");
  CHECK(ends[1].record.what == "callback careless: no such row");
  CHECK(ends[1].record.hook == "on_train_batch_start");
  CHECK(ends[1].record.step == 1);
  REQUIRE(ends[1].record.causes.size() == 1);
  CHECK(ends[1].record.causes[0] == failure_cause{"std::out_of_range", "no such row"});
  CHECK(ends[0].record.follows);

  const auto of_user = run_with(throws_in_lane{user_error{errc::device, "no device"}}, options);
  CHECK(of_user[1].record.type == "troupe::user_error");
  CHECK(of_user[1].record.code == errc::device);
  CHECK(of_user[1].record.what == "callback careless: no device");
}

TEST_CASE("a callback's own collective that ends with its generation only follows") {
  struct waits : callback {
    void on_train_batch_start(module& m, const batch&, std::int64_t) override {
      if (m.rank() == 1) throw std::runtime_error("first");
      m.barrier("of a callback");
    }
  };
  const auto ends = run_with(waits{}, quick(2, 4, 4));
  CHECK(ends[0].record.follows);
  CHECK_FALSE(ends[1].record.follows);
}

TEST_CASE("on_exception of callbacks is called first, and hides no other") {
  struct shouts : callback {
    explicit shouts(diary_ptr into) : into(std::move(into)) {}
    void on_train_start(module& m) override {
      if (m.rank() == 0) throw std::runtime_error("cause");
      m.barrier("never");
    }
    void on_exception(module& m, std::string_view, std::string_view what) override {
      if (m.rank() != 0) return;
      into->push_back("callback: " + std::string{what});
      throw std::runtime_error("again");
    }
    diary_ptr into;
  };
  struct named : regression {
    explicit named(diary_ptr into) : into(std::move(into)) {}
    void on_exception(const std::exception_ptr&, std::string_view, std::string_view) override {
      if (rank() == 0) into->push_back("module");
    }
    diary_ptr into;
  };
  const auto said = std::make_shared<texts>();
  torch_plugins plugins;
  plugins.callbacks.emplace_back(shouts{said});
  const auto ends = run_job({.recipe = make_recipe([=] { return std::make_shared<named>(said); },
                                                   std::make_shared<table_data>(16), plugins),
                             .options = quick(2, 4, 4)});
  REQUIRE(said->size() == 2);
  CHECK(said->at(0).starts_with("callback: callback "));
  CHECK(said->at(0).ends_with(": cause"));
  CHECK(said->at(1) == "module");
  CHECK(text_of(ends[0].error).ends_with(": cause"));
}

TEST_CASE("a factory that makes no callback is a user_error") {
  const auto ends = run_with([] { return std::shared_ptr<callback>{}; }, quick(1, 4, 1));
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("the factory of callback 0 made no callback"));
}

// --- gradients -----------------------------------------------------------------------------------

namespace {

struct quiet : regression {
  bool reads_gradients() const override { return false; }
};
struct sees_sum : callback {
  explicit sees_sum(std::shared_ptr<std::vector<at::Tensor>> seen) : seen_(std::move(seen)) {}
  void on_before_optimizer_step(module& m, torch::optim::Optimizer&) override {
    const auto gradient = m.parameters().front().grad();
    const auto all = m.all_gather(gradient);
    if (m.rank() == 0) seen_->push_back(all[0] - all[1]);
  }
  std::shared_ptr<std::vector<at::Tensor>> seen_;
};
struct looks_away : sees_sum {
  using sees_sum::sees_sum;
  bool reads_gradients() const override { return false; }
};

double apart(callback_factory one, const std::shared_ptr<std::vector<at::Tensor>>& seen) {
  torch_plugins plugins;
  plugins.callbacks.push_back(std::move(one));
  run_good_job({.recipe = recipe_for<quiet>(plugins, data_ptr{std::make_shared<table_data>(32)}),
                .options = quick(2, 8, 1)});
  return seen->at(0).abs().max().item<double>();
}

}  // namespace

TEST_CASE("a callback that reads gradients sees their sum where the module reads none") {
  const auto seen = std::make_shared<std::vector<at::Tensor>>();
  CHECK(apart(sees_sum{seen}, seen) == 0);
  // One that promises not to read them does not switch the fused step off.
  const auto other = std::make_shared<std::vector<at::Tensor>>();
  CHECK(apart(looks_away{other}, other) > 0);
}

TEST_CASE("policies made from texts are those made from options") {
  const auto options_by = [](std::vector<callback_factory> all) {
    trainer_options options;
    recipe_for<regression>(torch_plugins{.callbacks = std::move(all)}, data_ptr{})
        ->configure(options);
    return options;
  };
  CHECK(
      options_by({named_callback("early_stopping,monitor=val/a,min_delta=0.5,patience=7,mode=max"),
                  named_callback("gradient_accumulation_scheduler,0=4,4=2"),
                  named_callback("model_checkpoint,every_epoch=false,every_n_steps=5,"
                                 "every_n_minutes=1.5,on_exception=true,keep_last=4,keep_best=6,"
                                 "monitor=val/a,mode=max")}) ==
      options_by({early_stopping{{"val/a", 0.5, 7, true}},
                  gradient_accumulation_scheduler{{0, 4}, {4, 2}},
                  model_checkpoint{{.every_epoch = false,
                                    .every_n_steps = 5,
                                    .every = std::chrono::seconds{90},
                                    .on_exception = true,
                                    .keep_last = 4,
                                    .keep_best = 6,
                                    .monitor = "val/a",
                                    .maximize = true}}}));
  CHECK(options_by({named_callback("model_checkpoint"), named_callback("early_stopping")}) ==
        options_by({early_stopping{}}));
}

TEST_CASE("the best checkpoint has the weights of its loss, also from inside an epoch") {
  const temporary_folder folder;
  const auto data = std::make_shared<table_data>(40, 4, 8);
  auto options = quick(2, 2, 99);
  options.max_epochs = 3;  // of 10 steps
  options.val_check_interval = 0.4;
  const auto ended =
      trainer{options, {.run_folder = folder.path().string()}}.fit<regression>(data_ptr{data});
  REQUIRE(ended.ok());
  const auto best = std::make_shared<const snapshot>(read_checkpoint(ended.best_checkpoint));
  const torch::NoGradGuard no_grad;
  regression module;
  const auto weights = weights_of(best);
  for (auto& one : module.named_parameters()) one.value().copy_(weights.at(one.key()));
  const auto& judged = data->held_out();
  const auto loss = fn::mse_loss(module.net->forward(judged.inputs), judged.targets);
  CHECK(loss.item<double>() == Approx(best->loop.last.at("val/loss")).epsilon(1e-5));
}

TEST_CASE("impossible texts of callbacks are user_errors that list what is possible") {
  struct row {
    const char* text;
    const char* error;
  };
  const auto one = GENERATE(
      row{"emma", "unknown callback \"emma\": use one of lr_monitor, gradient_norms, "},
      row{"ema,dekay=1", "\"dekay=1\" is no option of ema: give KEY=VALUE with one of decay, "},
      row{"ema,decay", "\"decay\" is no option of ema"},
      row{"ema,decay=high", "decay = \"high\" is no number"},
      row{"ema,every_n_steps=1.5", "is no number without a point"},
      row{"ema,decay=2", "decay is not between 0 and 1"},
      row{"ema,decay=nan", "decay = \"nan\" is no number"},
      row{"ema,decay=0.5,decay=0.6", "decay stands there twice"},
      row{"swa,start=0.5,start_epoch=1", "start and start_epoch say the same"},
      row{"lr_monitor,every=day", "use one of step, epoch"},
      row{"lr_monitor,log_momentum=1", "use one of false, true"},
      row{"early_stopping,mode=least", "use one of min, max"},
      row{"gradient_accumulation_scheduler", "the schedule is empty"},
      row{"gradient_accumulation_scheduler,first=4", "give KEY=VALUE with one of EPOCH"},
      row{"gradient_accumulation_scheduler,0=many", "is no number without a point"},
      row{"ema,0=4", "\"0=4\" is no option of ema"}, row{"device_stats,a=1", "it has none"},
      row{"timer", "max_seconds is 0: give the longest time"},
      row{"model_checkpoint,every_n_minutes=-1", "every_n_minutes is -1: give a number above 0"});
  CHECK_THROWS_WITH(named_callback(one.text), Catch::Contains(one.error));
}

TEST_CASE("a callback that monitors saves at an epoch's end: a resume reports the whole epoch") {
  struct logging : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      log("by_epoch", static_cast<double>(index), {.on_step = false, .on_epoch = true});
      return regression::training_step(b, index);
    }
  };
  struct saves : callback {
    bool monitors() const override { return true; }
    void on_train_epoch_end(module& m, std::int64_t) override { m.save_checkpoint("there"); }
  };
  struct keeps : data_parallel {
    keeps(strategy_parts parts, std::shared_ptr<snapshot_ptr> to)
        : data_parallel(std::move(parts)), to_(std::move(to)) {}
    snapshot_ptr save_checkpoint(snapshot_ptr what, const std::string& path,
                                 const value&) override {
      if (!path.empty() && rank() == 0) *to_ = what;
      return what;
    }
    std::shared_ptr<snapshot_ptr> to_;
  };
  const auto kept = std::make_shared<snapshot_ptr>();
  torch_plugins plugins;
  plugins.callbacks = {saves{}};
  plugins.strategies["keeps"] = [=](strategy_parts parts) {
    return std::make_unique<keeps>(std::move(parts), kept);
  };
  auto options = quick(2, 3, 5);
  options.max_steps.reset();
  options.max_epochs = 1;
  options.strategy = own_name{"keeps"};
  const auto data = std::make_shared<table_data>(30, 4, 12);
  const auto reported = [](const std::vector<rank_end>& ends) {
    metrics all;
    for (const auto& row : ends[0].rows)
      for (const auto& [name, number] : row.logged) all[name] = number;
    return all;
  };
  const auto whole =
      reported(run_good_job({.recipe = recipe_for<logging>(plugins, data), .options = options}));
  CHECK(whole.at("by_epoch") == 2);
  REQUIRE(*kept);
  CHECK(reported(resumed<logging>(*kept, plugins, data, options)) == whole);
}
