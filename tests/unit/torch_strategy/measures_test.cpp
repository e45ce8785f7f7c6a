// Goal: measures count each sample of all ranks once, in validation hooks and across training
// steps. The snippets of docs/metrics.md compile and do what the page says.
#include "troupe/measures.hpp"

#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/strategy.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Matchers::Contains;

namespace {

/// Whether the sum of a row is positive.
struct sign_net : regression {
  using regression::regression;
  at::Tensor score(const troupe::batch& b) { return net->forward(b[0]).sigmoid(); }
  at::Tensor positive(const troupe::batch& b) { return b[1].gt(0); }
};

struct judged : sign_net {
  troupe::measures::f1 f1;
  troupe::measures::auroc auroc;

  void on_validation_epoch_start() override { f1.reset(), auroc.reset(); }
  troupe::step_output validation_step(const troupe::batch& b, std::int64_t) override {
    f1.update(score(b), positive(b));
    auroc.update(score(b), positive(b));
    return {};
  }
  void on_validation_epoch_end() override {
    log("val/f1", f1.compute(*this));
    log("val/auroc", auroc.compute(*this));
  }
};

struct counted_net : sign_net {
  std::shared_ptr<troupe::measures::accuracy> right =
      register_module("right", std::make_shared<troupe::measures::accuracy>());

  troupe::step_output training_step(const troupe::batch& b, std::int64_t index) override {
    right->update(score(b), positive(b));
    return regression::training_step(b, index);
  }
  void on_train_epoch_end(std::int64_t) override {
    log("train/accuracy", right->compute(*this));
    right->reset();
  }
};

/// Measures what does not depend on weights: targets against 0.
struct weightless : regression {
  std::shared_ptr<measures::mean_absolute_error> size =
      register_module("size", std::make_shared<measures::mean_absolute_error>());
  std::shared_ptr<measures::confusion_matrix> seen =
      register_module("seen", std::make_shared<measures::confusion_matrix>());

  step_output training_step(const batch& b, std::int64_t index) override {
    size->update(b[1], torch::zeros_like(b[1]));
    seen->update(b[1].gt(0).to(at::kLong), b[1].gt(0.5));
    return regression::training_step(b, index);
  }
  void on_train_epoch_start(std::int64_t) override { size->reset(), seen->reset(); }
  void on_train_epoch_end(std::int64_t) override {
    log("size", size->compute(*this));
    log("seen", seen->compute(*this).sum());
    log("above", seen->compute(*this)[1][1]);
  }
};

std::map<std::string, double> numbers_in(const value& result) {
  std::map<std::string, double> all;
  for (const auto& [name, number] : result.get_if<value_map>()->items)
    all[name] = *number.get_if<double>();
  return all;
}

}  // namespace

TEST_CASE("measures in validation hooks: any number of ranks logs one rank's values",
          "[measures]") {
  const auto data = std::make_shared<table_data>(8, 4, 13);
  const auto logged = [&](std::int32_t ranks, std::int64_t batch_size) {
    test_job job;
    job.recipe = recipe_for<judged>(data);
    job.options = quick(ranks, batch_size, 1);
    job.purpose = stage::validate;
    return numbers_in(run_good_job(job).at(0).result);
  };
  const auto expected = logged(1, 13);
  CHECK(expected.at("val/f1") > 0.1);
  CHECK(expected.at("val/auroc") > 0.1);
  // In the last batch rank 2 has no samples; with 16 ranks three never have one.
  for (const auto& [ranks, batch_size] : {std::pair{3, 2}, std::pair{3, 4}, std::pair{16, 1}}) {
    CAPTURE(ranks, batch_size);
    const auto found = logged(ranks, batch_size);
    for (const auto& [name, number] : expected) {
      CAPTURE(name);
      CHECK(found.at(name) == Approx(number).epsilon(1e-12));
    }
  }
}

TEST_CASE("log refuses a value that neither a step nor an epoch would report", "[measures]") {
  struct silent : regression {
    silent(stage where, log_options how) : where_(where), how_(how) {}
    step_output training_step(const batch& b, std::int64_t index) override {
      if (where_ == stage::train) log("lost", 1.0, how_);
      return regression::training_step(b, index);
    }
    step_output validation_step(const batch&, std::int64_t) override {
      if (where_ == stage::validate) log("lost", 1.0, how_);
      return {};
    }

  private:
    stage where_;
    log_options how_;
  };
  test_job job;
  job.options = quick(1, 2, 4);
  const auto said = [&](stage where, log_options how) {
    job.recipe = recipe_for<silent>(std::make_shared<table_data>(8, 4, 4), where, how);
    return text_of(run_job(job).at(0).error);
  };
  const auto refused = Catch::Contains("log(\"lost\"): on_step and on_epoch are both false");
  CHECK_THAT(said(stage::train, {.on_step = false}), refused);
  CHECK_THAT(said(stage::train, {.on_step = false, .on_epoch = false}), refused);
  CHECK_THAT(said(stage::validate, {.on_epoch = false}), refused);
  CHECK(said(stage::train, {.on_step = false, .on_epoch = true}) == "nothing");
  CHECK(said(stage::validate, {.on_step = false}) == "nothing");
}

TEST_CASE("a mean that a batch's end hook logs does not count ranks without samples",
          "[measures]") {
  struct ended : regression {
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      log("who", rank(), {.on_step = false, .on_epoch = true});
    }
    void on_train_epoch_end(std::int64_t) override { log("who_at_end", rank()); }
    void on_validation_batch_end(const step_output&, const batch&, std::int64_t,
                                 std::int32_t) override {
      log("val/who", rank());
    }
  };
  const auto data = std::make_shared<table_data>(8, 4, 8);
  test_job job;
  job.recipe = recipe_for<ended>(data);
  job.options = quick(3, 2, 1000);  // in the second batch rank 2 has none
  job.options.max_epochs = 1;
  for (const auto& end : run_good_job(job)) {
    for (const auto* name : {"who", "val/who"}) {
      CAPTURE(name);
      CHECK(end.loop.last.at(name) == Approx((0 * 3 + 1 * 3 + 2 * 2) / 8.0));
    }
    CHECK(end.loop.last.at("who_at_end") == 1);
  }
}

TEST_CASE("a registered measure counts each training sample of all ranks once", "[measures]") {
  const auto data = std::make_shared<table_data>(37);
  const auto& targets = data->targets();
  const auto ranks = GENERATE(1, 2, 3);
  const auto accumulate = GENERATE(1, 2);
  const bool elastic = GENERATE(false, true);
  CAPTURE(ranks, accumulate, elastic);
  test_job job;
  job.recipe = recipe_for<weightless>(data);
  job.options = quick(ranks, 4, 1000);
  job.options.max_epochs = 2;
  job.options.accumulate_grad_batches = accumulate;
  if (elastic) job.options.elastic.max_restarts = 1;
  for (const auto& end : run_good_job(job)) {
    const auto& last = end.loop.last;
    CHECK(last.at("size") == Approx(targets.abs().to(at::kDouble).mean().item<double>()));
    CHECK(last.at("seen") == 37);
    CHECK(last.at("above") == targets.gt(0.5).sum().item<double>());
  }
}

TEST_CASE("measures keep their types in a module of bfloat16", "[measures]") {
  const auto data = std::make_shared<table_data>(12);
  test_job job;
  job.recipe = recipe_for<weightless>(data);
  job.options = quick(2, 2, 2);
  job.options.precision = precision_kind::bf16_true;
  const auto ends = run_good_job(job);
  const auto weights = weights_of(ends.at(0).snapshot);
  CHECK(weights.at("net.0.weight").scalar_type() == at::kBFloat16);
  CHECK(weights.at("size.joined").scalar_type() == at::kDouble);
  CHECK(weights.at("seen.joined").scalar_type() == at::kLong);
  measures::mean_absolute_error alone;
  alone.to(at::kBFloat16);
  CHECK(alone.buffers().at(0).scalar_type() == at::kDouble);
}

TEST_CASE("an accuracy over training steps is that of all samples", "[measures]") {
  test_job job;
  job.recipe = recipe_for<counted_net>(std::make_shared<table_data>(20));
  job.options = quick(2, 3, 1000);
  job.options.max_epochs = 1;
  const auto ends = run_good_job(job);
  const auto right = ends.at(0).loop.last.at("train/accuracy") * 20;
  CHECK(right == Approx(std::round(right)));
  CHECK(weights_of(ends.at(0).snapshot).contains("right.joined"));
}

TEST_CASE("compute changes nothing, and reset forgets", "[measures]") {
  measures::accuracy share{{.classes = 3, .how = measures::average::micro}};
  CHECK(share.compute().item<double>() == 0);
  share.update(torch::tensor({0, 1, 2, 2}), torch::tensor({0, 1, 2, 0}));
  CHECK(share.compute().item<double>() == 0.75);
  CHECK(share.compute().item<double>() == 0.75);
  share.update(torch::tensor({1}), torch::tensor({0}));
  CHECK(share.compute().item<double>() == 0.6);
  share.reset();
  CHECK(share.compute().item<double>() == 0);
  measures::auroc area;
  area.update(torch::tensor({0.1, 0.9}), torch::tensor({0, 1}));
  CHECK(area.compute().item<double>() == 1);
  area.reset();
  CHECK(area.compute().item<double>() == 0);
}

TEST_CASE("a score outside of 0 to 1 makes its update one of logits", "[measures]") {
  const auto truth = torch::tensor({0, 0, 1, 1});
  const auto low = torch::tensor({-0.2, 0.2, 0.3, 0.4});  // three logits of a 1
  measures::accuracy right;
  right.update(low, truth);
  CHECK(right.compute().item<double>() == 0.75);
  right.update(low.abs(), truth);  // scores below the threshold
  CHECK(right.compute().item<double>() == 0.625);
  // torchmetrics looks at ignored samples too, but not for a matrix.
  const measures::classification but_2{.ignore_index = 2};
  measures::recall found{but_2};
  measures::confusion_matrix cells{but_2};
  for (measures::measure* one : std::initializer_list<measures::measure*>{&found, &cells})
    one->update(torch::tensor({0.3, 7.}), torch::tensor({1, 2}));
  CHECK(found.compute().item<double>() == 1);
  CHECK(cells.compute()[1][0].item<double>() == 1);
  measures::auroc binned{{}, 5};
  binned.update(torch::tensor({-3., 3.}), torch::tensor({0, 1}));
  CHECK(binned.compute().item<double>() == 1);
  measures::auroc classes{{.classes = 2}};
  // The last class has the higher probability in the second sample, and the lower logit.
  classes.update(torch::tensor({{9., 8.}, {0., 7.}}), torch::tensor({0, 1}));
  CHECK(classes.compute().item<double>() == 1);
  for (const auto& numbers : {torch::tensor({0, 1}), torch::tensor({0., 1.})}) {
    measures::accuracy whole;
    whole.update(numbers, torch::tensor({0, 1}));
    CHECK(whole.compute().item<double>() == 1);
  }
}

TEST_CASE("impossible input of a measure: a user_error says what fits", "[measures]") {
  const auto said = [](auto&& what) -> std::string {
    try {
      what();
    } catch (const user_error& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto labels = torch::tensor({0, 3});
  measures::accuracy three{{.classes = 3}};
  CHECK_THAT(said([&] {
               three.update(labels, torch::tensor({0, 1}));
             }),
             Contains("a prediction is 3, but classes are 0 to 2"));
  CHECK_THAT(said([&] {
               three.update(torch::rand({2, 3}), labels);
             }),
             Contains("a target is 3, but classes are 0 to 2"));
  CHECK_THAT(
      said([&] {
        three.update(torch::rand({2, 4}), torch::tensor({0, 1}));
      }),
      Contains("predictions (2, 4) and targets (2) do not fit") && Contains("scores (N, 3, ...)"));
  CHECK_THAT(said([&] {
               three.update(torch::rand({2}), torch::tensor({0, 1}));
             }),
             Contains("or integer labels (N, ...)"));
  CHECK_THAT(said([&] {
               three.update(torch::rand({2, 3, 4, 5}), torch::zeros({2, 5, 4}, torch::kLong));
             }),
             Contains("(2, 3, 4, 5) and targets (2, 5, 4) do not fit"));
  measures::f1 two;
  CHECK_THAT(said([&] {
               two.update(torch::rand({2}), torch::tensor({0.05, 0.95}));
             }),
             Contains("a target is no whole number"));
  CHECK_THAT(said([&] {
               two.update(torch::rand({2, 3}), torch::zeros({3, 2}));
             }),
             Contains("(2, 3) and targets (3, 2) do not fit"));
  CHECK_NOTHROW(two.update(torch::rand({2, 1}), torch::tensor({0.0, 1.0})));
  measures::auroc area;
  CHECK_THAT(said([&] {
               area.update(labels, torch::tensor({0, 1}));
             }),
             Contains("needs scores, not labels"));
  CHECK_THAT(said([&] {
               area.update(torch::tensor({0.5, std::nan("")}), torch::tensor({0, 1}));
             }),
             Contains("not a number"));
  CHECK_THAT(said([] { measures::f1{{.classes = 3, .top_k = 2}}; }), Contains("accuracy only"));
  CHECK_THAT(said([] { measures::accuracy{{.classes = 0}}; }), Contains("classes must be 1"));
  CHECK_THAT(said([] { measures::auroc{{}, 1}; }), Contains("thresholds must be 0"));
  measures::mean_squared_error error;
  CHECK_THAT(said([&] {
               error.update(torch::rand({2, 1}), torch::rand({2}));
             }),
             Contains("(2, 1) and targets (2) differ in shape"));
  measures::perplexity words;
  CHECK_THAT(said([&] {
               words.update(torch::rand({2, 5, 7}), torch::tensor({0, 1}));
             }),
             Contains("(2, 5, 7) and targets (2) do not fit"));
}

// --- hooks that log ------------------------------------------------------------------------------

namespace {

struct logged_in {
  const char* hook;
  bool on_step = false, by_epoch = false;
};
struct logs_in_hook : regression {
  explicit logs_in_hook(logged_in what)
      : regression({.optimize =
                        [=](regression& m) {
                          return optimizers{torch::optim::SGD(m.parameters(), 0.1)}.scheduled(
                              schedules::exponential(0.9),
                              {.every = what.by_epoch ? schedule::interval::epoch
                                                      : schedule::interval::step});
                        }}),
        what_(what) {}
  void log_in(std::string_view here) {
    if (here != what_.hook) return;
    if (what_.on_step)
      log("gap", 1, {.on_step = true});
    else
      log("gap", 1);
  }
  void setup(stage) override { log_in("setup"); }
  void on_fit_start() override { log_in("on_fit_start"); }
  void on_train_start() override { log_in("on_train_start"); }
  void on_train_epoch_start(std::int64_t) override { log_in("on_train_epoch_start"); }
  void on_train_epoch_end(std::int64_t) override { log_in("on_train_epoch_end"); }
  void lr_scheduler_step(scheduler& which, std::optional<double> metric) override {
    log_in("lr_scheduler_step");
    regression::lr_scheduler_step(which, metric);
  }
  void on_validation_end() override { log_in("on_validation_end"); }
  void on_train_end() override { log_in("on_train_end"); }
  void on_fit_end() override { log_in("on_fit_end"); }
  logged_in what_;
};

rank_end fit_that_logs(const logged_in& what) {
  const auto recipe = recipe_for<logs_in_hook>(std::make_shared<table_data>(8, 4, 8), what);
  return run_job({.recipe = recipe, .options = quick(1, 4, 2)})[0];
}

}  // namespace

TEST_CASE("a value that no reduction would report is refused in the hook that logs it") {
  using row = logged_in;
  const auto lost =
      GENERATE(row{"setup"}, row{"on_fit_start"}, row{"on_train_start", true},
               row{"on_train_epoch_start", true}, row{"on_train_epoch_end", true},
               row{"lr_scheduler_step", true, true}, row{"lr_scheduler_step", false, true},
               row{"on_validation_end"}, row{"on_train_end"}, row{"on_fit_end"});
  CAPTURE(lost.hook, lost.on_step, lost.by_epoch);
  CHECK_THAT(text_of(fit_that_logs(lost).error),
             Contains("log(\"gap\"): a value that this hook logs would not be reported"));
}

TEST_CASE("a value that the hooks of an epoch and the schedules by step log is reported") {
  using row = logged_in;
  const auto reported = GENERATE(row{"on_train_start"}, row{"on_train_epoch_start"},
                                 row{"on_train_epoch_end"}, row{"lr_scheduler_step"});
  CAPTURE(reported.hook);
  const auto end = fit_that_logs(reported);
  CHECK(text_of(end.error) == "nothing");
  CHECK(end.loop.last.contains("gap"));
}
