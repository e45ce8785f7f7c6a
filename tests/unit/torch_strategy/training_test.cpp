// Goal: whole runs of the learner are right: logging, stops, evaluation, state, randomness.
#include <ATen/autocast_mode.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "backends/checkpoint/digest.hpp"
#include "backends/torch/classifier.hpp"
#include "backends/torch/reference_executor.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

regression::choices with_dropout() {
  return {.dropout = 0.3, .optimize = [](regression& m) {
            return optimizers{torch::optim::AdamW(m.parameters(), 0.01)}
                .scheduled<torch::optim::StepLR>({.every = schedule::interval::step}, 2, 0.9);
          }};
}

}  // namespace

TEST_CASE("equal runs with dropout end in equal bits beside other running jobs") {
  const auto data = std::make_shared<table_data>(50);
  auto options = quick(3, 4, 12);
  const auto first = trained<regression>(options, data, with_dropout());
  CHECK(distance(first, trained<regression>(options, data, with_dropout())) == 0);
  std::vector<std::map<std::string, at::Tensor>> beside(2);
  std::vector<std::thread> jobs;
  for (int i = 0; i < 2; ++i)
    jobs.emplace_back([&, i] {
      auto mine = options;
      if (i == 1) mine.seed = 4;
      beside[i] = trained<regression>(mine, data, with_dropout());
    });
  for (auto& one : jobs) one.join();
  CHECK(distance(first, beside[0]) == 0);
  CHECK(distance(first, beside[1]) > 1e-4);
  options.num_sanity_val_steps = 2;  // the sanity check is isolated and changes nothing
  CHECK(distance(first, trained<regression>(options, std::make_shared<table_data>(50, 4, 20),
                                            with_dropout())) == 0);
}

namespace {

struct watched_buffers : regression {
  watched_buffers() : regression({.batch_norm = true, .optimize = {}}) {}
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    for (const auto& buffer : buffers()) {
      const auto all = all_gather(buffer.to(at::kDouble));
      if (!all.eq(all[0]).all().item<bool>()) throw std::runtime_error("buffers differ");
    }
  }
};

}  // namespace

TEST_CASE("after each step all ranks have the batch statistics of rank 0") {
  const auto data = std::make_shared<table_data>(60);
  const auto weights = trained<watched_buffers>(quick(3, 4, 6), data);
  CHECK(weights.at("net.1.num_batches_tracked").item<std::int64_t>() == 6);
}

TEST_CASE("bf16-mixed computes in bfloat16 and keeps float32 weights") {
  struct half_inside : regression {
    step_output training_step(const batch& b, std::int64_t) override {
      const auto y = net->forward(b[0]);
      if (y.scalar_type() != at::kBFloat16) throw std::runtime_error("the output is not bfloat16");
      return fn::mse_loss(y.to(at::kFloat), b[1]);
    }
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      if (at::autocast::is_autocast_enabled(at::kCPU))
        throw std::runtime_error("autocast is still enabled");
    }
  };
  const auto data = std::make_shared<table_data>(32);
  auto options = quick(2, 8, 6);
  options.precision = precision_kind::bf16_mixed;
  const auto mixed = trained<half_inside>(options, data);
  for (const auto& [name, tensor] : mixed) CHECK(tensor.scalar_type() == at::kFloat);
  options.precision = precision_kind::f32_true;
  const auto apart = distance(mixed, trained<regression>(options, data));
  CHECK(apart > 1e-5);
  CHECK(apart < 0.05);
  options.precision = precision_kind::f64_true;
  const auto wide = trained<regression>(options, data);
  CHECK(wide.at("net.0.weight").scalar_type() == at::kDouble);
  options.precision = precision_kind::bf16_true;
  CHECK(trained<regression>(options, data).at("net.0.weight").scalar_type() == at::kBFloat16);
}

// --- logging, evaluation -------------------------------------------------------------------------

TEST_CASE("evaluation counts every sample once on any number of ranks") {
  const auto data = std::make_shared<table_data>(16, 4, 23);
  auto options = quick(3, 4, 0);
  const auto purpose = GENERATE(stage::validate, stage::test);
  const auto ends = run_good_job(
      {.recipe = recipe_for<regression>(data), .options = options, .purpose = purpose});
  rank_random draws{options.seed};
  const random_scope scope{draws};
  regression same;
  same.eval();
  const auto loss =
      fn::mse_loss(same.net->forward(data->held_out().inputs), data->held_out().targets, {})
          .item<double>();
  const auto name = purpose == stage::test ? "test/loss" : "val/loss";
  const auto& got = ends[0].result.get_if<value_map>()->items;
  CHECK(*got.at(name).get_if<double>() == Approx(loss).epsilon(1e-6));
  CHECK(ends[0].loop.last.at(name) == *got.at(name).get_if<double>());
  // By default the caller's queue receives the metrics.
  REQUIRE(ends[0].queued.size() == 1);
  CHECK(ends[0].queued[0] == ends[0].result);
}

TEST_CASE("predictions are returned in the order of samples") {
  const auto data = std::make_shared<table_data>(16, 4, 23);
  const auto ends = run_good_job({.recipe = recipe_for<regression>(data),
                                  .options = quick(3, 4, 0),
                                  .purpose = stage::predict});
  rank_random draws{3};
  const random_scope scope{draws};
  regression same;
  std::vector<at::Tensor> pieces;
  for (const auto& one : ends[0].result.get_if<value_list>()->items) pieces.push_back(unboxed(one));
  CHECK(torch::cat(pieces).allclose(same.net->forward(data->held_out().inputs), 1e-5, 1e-6));
  CHECK(pieces.size() == 6);
  CHECK(ends[1].result.get_if<value_list>()->items.empty());
}

namespace {

/// Evaluation sets of several lengths.
struct several_loaders : table_data {
  explicit several_loaders(const std::vector<std::int64_t>& lengths) : table_data(16) {
    for (const auto length : lengths) {
      auto part = std::make_shared<rows>();
      part->inputs = inputs().narrow(0, 0, length);
      part->targets = targets().narrow(0, 0, length);
      parts.push_back(std::move(part));
    }
  }
  std::vector<dataset_ptr> all() const { return {parts.begin(), parts.end()}; }
  std::vector<dataset_ptr> validation() override { return all(); }
  std::vector<dataset_ptr> test() override { return all(); }
  std::vector<dataset_ptr> predict() override { return all(); }
  std::vector<std::shared_ptr<rows>> parts;
};

/// Logs in steps (per loader, and over all loaders) and after them.
struct counting : regression {
  step_output validation_step(const batch& b, std::int64_t) override {
    log("val/loss", fn::mse_loss(net->forward(b[0]), b[1]));
    const auto n = static_cast<double>(b.samples());
    log("seen", n, {.reduce = log_reduction::sum});
    log("together", n, {.reduce = log_reduction::sum, .add_dataloader_idx = false});
    return {};
  }
  void on_validation_epoch_end() override { log("behind", 1); }
  void on_validation_batch_end(const step_output&, const batch&, std::int64_t,
                               std::int32_t) override {
    log("ended", 1);
  }
  void on_validation_batch_start(const batch&, std::int64_t, std::int32_t loader) override {
    if (at().dataloader != loader) throw std::logic_error("at() names another loader");
  }
};

regression born(std::uint64_t seed) {
  rank_random draws{seed};
  const random_scope scope{draws};
  regression one;
  one.eval();
  return one;
}

}  // namespace

TEST_CASE("with several loaders a metric's name ends with its loader's number") {
  const auto data = std::make_shared<several_loaders>(std::vector<std::int64_t>{11, 1, 6});
  const auto options = quick(2, 2, 0);
  const auto ends = run_good_job(
      {.recipe = recipe_for<counting>(data), .options = options, .purpose = stage::validate});
  metrics got;
  for (const auto& [name, number] : ends[0].result.get_if<value_map>()->items)
    got[name] = *number.get_if<double>();
  CHECK(got.size() == 11);
  auto same = born(options.seed);
  for (std::size_t i = 0; i < data->parts.size(); ++i) {
    const auto suffix = "/dataloader_idx_" + std::to_string(i);
    const auto& part = *data->parts[i];
    const auto loss = fn::mse_loss(same.net->forward(part.inputs), part.targets);
    CHECK(got.at("val/loss" + suffix) == Approx(loss.item<double>()).epsilon(1e-6));
    CHECK(got.at("seen" + suffix) == static_cast<double>(part.size()));
  }
  CHECK(got.at("together") == 18);
  CHECK(got.at("behind") == 1);
  // With one loader there is no suffix.
  const auto one = run_good_job({.recipe = recipe_for<counting>(std::make_shared<several_loaders>(
                                     std::vector<std::int64_t>{5})),
                                 .options = options,
                                 .purpose = stage::validate});
  CHECK(one[0].result.get_if<value_map>()->items.contains("val/loss"));
}

TEST_CASE("a rank without samples of a loader need not log what the others log of it") {
  struct named : regression {
    step_output validation_step(const batch& b, std::int64_t) override {
      const log_options sum{.reduce = log_reduction::sum, .add_dataloader_idx = false};
      log(at().dataloader == 0 ? "of_0" : "of_1", static_cast<double>(b.samples()), sum);
      return {};
    }
  };
  const auto data = std::make_shared<several_loaders>(std::vector<std::int64_t>{16, 2});
  const auto ends = run_good_job(
      {.recipe = recipe_for<named>(data), .options = quick(3, 2, 0), .purpose = stage::validate});
  const auto& got = ends[0].result.get_if<value_map>()->items;
  CHECK(*got.at("of_0").get_if<double>() == 16);
  CHECK(*got.at("of_1").get_if<double>() == 2);
}

TEST_CASE("early stopping monitors one of several loaders by its full name") {
  const auto data = std::make_shared<several_loaders>(std::vector<std::int64_t>{4, 4});
  auto options = quick(2, 4, 99);
  options.stop_early.push_back({.monitor = "behind", .patience = 1});
  CHECK(run_good_job({.recipe = recipe_for<counting>(data), .options = options})[0].why ==
        stop_reason::early_stopping);
  options.stop_early = {{.monitor = "val/loss"}};
  CHECK_THAT(text_of(run_job({.recipe = recipe_for<counting>(data), .options = options})[0].error),
             Catch::Contains("val/loss/dataloader_idx_0"));
}

TEST_CASE("predictions of several loaders are returned per loader") {
  const auto data = std::make_shared<several_loaders>(std::vector<std::int64_t>{7, 0, 16});
  const auto ends = run_good_job({.recipe = recipe_for<regression>(data),
                                  .options = quick(3, 2, 0),
                                  .purpose = stage::predict});
  auto same = born(3);
  const auto& loaders = ends[0].result.get_if<value_list>()->items;
  REQUIRE(loaders.size() == 3);
  CHECK(loaders[1].get_if<value_list>()->items.empty());
  for (const std::size_t i : {0, 2}) {
    std::vector<at::Tensor> pieces;
    for (const auto& one : loaders[i].get_if<value_list>()->items) pieces.push_back(unboxed(one));
    CHECK(torch::cat(pieces).allclose(same.net->forward(data->parts[i]->inputs), 1e-5, 1e-6));
  }
}

namespace {

struct talkative : regression {
  step_output training_step(const batch& b, std::int64_t index) override {
    // The value encodes the rank and the step that logged it; its weight is the number of samples.
    log("who", rank() + 10.0 * static_cast<double>(at().step), {.on_step = true, .on_epoch = true});
    log("most", static_cast<double>(b.samples()), {.reduce = log_reduction::max});
    log("samples", static_cast<double>(b.samples()),
        {.on_step = false, .on_epoch = true, .reduce = log_reduction::sum});
    return regression::training_step(b, index);
  }
};

}  // namespace

TEST_CASE("logged values are weighted by samples and reported at their interval") {
  // 2 ranks with batches of 2, 7 samples in all: batches of (2, 2) and (2, 1).
  const auto data = std::make_shared<table_data>(7);
  auto options = quick(2, 2, 4);
  options.max_epochs = 2;
  options.log_every_n_steps = 3;
  const auto ends = run_good_job({.recipe = recipe_for<talkative>(data), .options = options});
  for (const auto& end : ends) {
    const auto& last = end.loop.last;
    CHECK(last.at("samples") == 7);
    CHECK(last.at("who_epoch") == Approx((20 * 2 + 21 * 2 + 30 * 2 + 31 * 1) / 7.0));
    CHECK(last.at("who") == last.at("who_epoch"));
    // reported at the end of the epoch
    CHECK(last.at("who_step") == Approx((30 * 2 + 31 * 1) / 3.0));
    CHECK(last.at("most") == 2);
    CHECK(last.contains("train/loss"));
    CHECK_FALSE(last.contains("samples_step"));
  }
}

TEST_CASE("ranks that log different names get an error that lists them") {
  struct different : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      if (rank() == 1) log("mine alone", 1);
      return regression::training_step(b, index);
    }
  };
  const auto data = std::make_shared<table_data>(16);
  auto options = quick(2, 4, 4);
  options.log_every_n_steps = 1;
  const auto ends = run_job({.recipe = recipe_for<different>(data), .options = options});
  for (const auto& end : ends)
    CHECK_THAT(text_of(end.error), Catch::Contains("rank 0 logged \"train/loss\"; rank 1 logged "
                                                   "\"mine alone\", \"train/loss\""));
}

// --- ends ----------------------------------------------------------------------------------------

namespace {

struct leaver : regression {
  leaver(std::string where, std::int32_t who) : where_(std::move(where)), who_(who) {}
  void leave_at(std::string_view here) {
    if (here == where_ && rank() == who_ && at().step >= 2) stop();
  }
  step_output training_step(const batch& b, std::int64_t index) override {
    leave_at("training_step");
    return regression::training_step(b, index);
  }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    leave_at("on_train_batch_end");
  }
  step_output validation_step(const batch& b, std::int64_t index) override {
    leave_at("validation_step");
    return regression::validation_step(b, index);
  }
  void on_train_epoch_end(std::int64_t) override { leave_at("on_train_epoch_end"); }
  std::string where_;
  std::int32_t who_;
};

struct skipper : regression {
  batch_verdict on_train_batch_start(const batch&, std::int64_t index) override {
    return rank() == 1 && index == 2 ? batch_verdict::skip_epoch : batch_verdict::proceed;
  }
};

}  // namespace

TEST_CASE("a stop by one rank ends all ranks at the same step") {
  struct row {
    const char* where;
    std::int64_t steps;
  };
  // Epochs of 4 steps, each followed by a validation.
  const auto one = GENERATE(row{"training_step", 3}, row{"on_train_batch_end", 3},
                            row{"validation_step", 4}, row{"on_train_epoch_end", 4});
  const auto data = std::make_shared<table_data>(24, 4, 6);
  const auto ends = run_good_job(
      {.recipe = recipe_for<leaver>(data, std::string{one.where}, 1), .options = quick(2, 3, 99)});
  CAPTURE(one.where);
  for (const auto& end : ends) {
    CHECK(end.loop.steps == one.steps);
    CHECK(end.why == stop_reason::hook);
  }
}

TEST_CASE("skip_epoch on one rank skips the rest of the epoch on all ranks") {
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 3, 99);
  options.max_epochs = 3;
  const auto ends = run_good_job({.recipe = recipe_for<skipper>(data), .options = options});
  for (const auto& end : ends) {
    CHECK(end.loop.steps == 6);
    CHECK(end.loop.samples == 6 * 6);
  }
}

TEST_CASE("a step without a loss is skipped with one rank and refused with several") {
  struct picky : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      return index % 2 ? step_output{} : regression::training_step(b, index);
    }
  };
  struct wordy : regression {
    step_output training_step(const batch&, std::int64_t) override { return value{"done"}; }
  };
  const auto data = std::make_shared<table_data>(24);
  CHECK(trained<picky>(quick(1, 6, 4), data).size() == 4);
  const auto refused = run_job({.recipe = recipe_for<picky>(data), .options = quick(2, 3, 4)});
  CHECK_THAT(text_of(refused[0].error), Catch::Contains("training_step returned nothing"));
  const auto text = run_job({.recipe = recipe_for<wordy>(data), .options = quick(1, 3, 4)});
  CHECK_THAT(text_of(text[0].error), Catch::Contains("return a loss"));
}

TEST_CASE("a loss in a map is trained and training_step_end may replace it") {
  struct mapped : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      return std::map<std::string, at::Tensor>{
          {"loss", regression::training_step(b, index).loss() * 3}, {"more", b[0]}};
    }
    step_output training_step_end(step_output output) override { return output.loss() / 3; }
    void on_train_batch_end(const step_output& output, const batch&, std::int64_t) override {
      if (!output.get().is<tensor_ptr>())
        throw std::runtime_error("training_step_end did not replace the output");
    }
  };
  const auto data = std::make_shared<table_data>(24);
  CHECK(distance(trained<mapped>(quick(2, 3, 4), data), trained<regression>(quick(2, 3, 4), data)) <
        1e-6);
}

// --- state ---------------------------------------------------------------------------------------

TEST_CASE("a run can start from given weights and refuses weights that do not fit") {
  const auto data = std::make_shared<table_data>(16, 4, 8);
  auto options = quick(2, 4, 4);
  const auto ends = run_good_job({.recipe = recipe_for<regression>(data), .options = options});
  auto started = options;
  started.max_steps = 0;
  const auto again = run_good_job(
      {.recipe = recipe_for<regression>(data), .options = started, .initial = ends[0].snapshot});
  CHECK(distance(weights_of(ends[0].snapshot), weights_of(again[0].snapshot)) == 0);
  const auto other =
      run_job({.recipe = recipe_for<regression>(data, regression::choices{.features = 5}),
               .options = started,
               .initial = ends[0].snapshot});
  CHECK_THAT(text_of(other[0].error), Catch::Contains("net.0.weight"));
}

TEST_CASE("modules that differ between ranks are refused at the start") {
  struct uneven : regression {
    static regression::choices next() {
      static std::atomic<int> made{0};
      return {.features = 4, .batch_norm = made++ % 2 == 1, .optimize = {}};
    }
    uneven() : regression(next()) {}
  };
  const auto ends = run_job(
      {.recipe = recipe_for<uneven>(std::make_shared<table_data>(16)), .options = quick(2, 4, 4)});
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("rank 1's module"));
}

TEST_CASE("the queue copies values deeply and keeps their dtypes and order") {
  struct sender : regression {
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      const auto weight = net->named_parameters()["0.weight"];
      add_to_queue(value_tuple{{at().step, boxed(weight), boxed(torch::ones({1}, at::kBFloat16))}});
    }
  };
  const auto ends = run_good_job(
      {.recipe = recipe_for<sender>(std::make_shared<table_data>(16)), .options = quick(2, 4, 3)});
  REQUIRE(ends[0].queued.size() == 4);  // and the metrics
  for (int i = 0; i < 3; ++i) {
    const auto& items = ends[0].queued[i].get_if<value_tuple>()->items;
    CHECK(items[0] == value{i + 1});
    CHECK(unboxed(items[2]).scalar_type() == at::kBFloat16);
    CHECK_FALSE(unboxed(items[1]).requires_grad());
  }
  const auto weight = [&](int i) {
    return unboxed(ends[0].queued[i].get_if<value_tuple>()->items[1]);
  };
  CHECK_FALSE(weight(0).equal(weight(1)));
}

TEST_CASE("the record of a LibTorch error holds its message without stack frames") {
  struct failing : regression {
    using regression::regression;
    void on_before_optimizer_step(torch::optim::Optimizer&) override {
      TORCH_CHECK(false, "no such weight");
    }
  };
  const auto data = std::make_shared<table_data>(24);
  const auto end = run_job({.recipe = recipe_for<failing>(data), .options = quick(1, 4, 5)})[0];
  CHECK(end.record.type == "c10::Error");
  CHECK(end.record.what == "no such weight");
  CHECK_THROWS_AS(std::rethrow_exception(end.error), c10::Error);
  // The same when the error is nested in a user's exception.
  const auto nested = [&] {
    try {
      std::rethrow_exception(end.error);
    } catch (...) {
      std::throw_with_nested(std::runtime_error("the model is damaged"));
    }
  };
  try {
    nested();
  } catch (const std::exception& error) {
    const auto text = recipe_for<failing>(data)->text_of_exceptions();
    CHECK(describe(error, text).causes.at(0) == failure_cause{"c10::Error", "no such weight"});
  }
}

// --- the bits of the serial reference executor ---------------------------------------------------

namespace {

reference_run plain(const trainer_options& options, const data_ptr& data,
                    std::function<std::shared_ptr<module>()> make) {
  reference_run run;
  run.make_module = make;
  run.loss = [](torch::nn::Module& m, const value& held, std::int64_t index) {
    auto& ours = dynamic_cast<module&>(m);
    return ours.training_step(batch{held, 1}, index).loss();
  };
  // Moves the optimizer out of the result of configure_optimizers.
  run.make_optimizer = [](torch::nn::Module& m) -> std::unique_ptr<torch::optim::Optimizer> {
    auto made = dynamic_cast<module&>(m).configure_optimizers();
    auto& optimizer = *made.all().at(0).optimizer;
    if (auto* sgd = dynamic_cast<torch::optim::SGD*>(&optimizer))
      return std::make_unique<torch::optim::SGD>(std::move(*sgd));
    return std::make_unique<torch::optim::AdamW>(
        std::move(dynamic_cast<torch::optim::AdamW&>(optimizer)));
  };
  run.data = data->train();
  run.seed = options.seed;
  run.shards = options.ranks;
  run.batch_size = options.batch_size;
  run.accumulate_grad_batches = options.accumulate_grad_batches;
  run.max_epochs = options.max_epochs;
  run.max_steps = options.max_steps;
  run.clip_norm = options.gradient_clip_val;
  return run;
}

void require_equal(const trainer_options& options, const data_ptr& data,
                   const std::function<std::shared_ptr<module>()>& make) {
  const auto ends = run_good_job({.recipe = make_recipe(make, data), .options = options});
  const auto expected = execute(plain(options, data, make));
  CHECK(ends[0].loop.steps == expected.steps);
  CHECK(ends[0].loop.samples == expected.samples);
  CHECK(ends[0].snapshot->weights_digest == weights_digest(expected.model));
}

}  // namespace

TEST_CASE("training with every schedule ends in the bits of the reference") {
  const auto ranks = GENERATE(1, 2, 3, 5);
  const auto accumulate = GENERATE(1, 3);
  const auto dropout = GENERATE(0.0, 0.4);
  const bool norm = accumulate == 3 && dropout == 0;
  // Batch norm needs more than one sample per piece: 60 divides into pieces of 4.
  const auto data = std::make_shared<table_data>(norm ? 60 : 37);
  auto options = quick(ranks, 4, 9);
  options.accumulate_grad_batches = accumulate;
  if (dropout > 0) options.gradient_clip_val = 0.05;
  CAPTURE(ranks, accumulate, dropout);
  require_equal(options, data, [=] {
    return std::make_shared<regression>(
        regression::choices{.dropout = dropout, .batch_norm = norm, .optimize = {}});
  });
}

TEST_CASE("training the program's models ends in the bits of the reference") {
  const auto data = synthetic({.samples = 150, .evaluation = 40});
  data->setup(stage::train);
  auto options = quick(2, 16, 6);
  classifier_options how;
  how.model = GENERATE("mlp", "cnn");
  how.layers.hidden = {32, 16};
  how.layers.dropout = 0.2;
  how.optimizer = how.model == "mlp" ? "sgd" : "adamw";
  how.learning_rate = 0.01;
  require_equal(options, data, [=] { return std::make_shared<classifier>(how); });
}

TEST_CASE("the program's classifier learns and reports loss and accuracy") {
  const auto data = synthetic({.samples = 600, .evaluation = 203});
  classifier_options how;
  how.layers.hidden = {32};
  auto options = quick(3, 16, 60);
  options.precision = GENERATE(precision_kind::f32_true, precision_kind::bf16_mixed,
                               precision_kind::f16_mixed, precision_kind::f16_true);
  const auto ends = run_good_job({.recipe = recipe_for<classifier>(data, how), .options = options});
  const auto& last = ends[0].loop.last;
  CHECK(last.at("val/accuracy") > 0.95);
  CHECK(last.at("val/loss") < 1);
  CHECK(last.contains("train/loss"));
  const auto tested = run_good_job({.recipe = recipe_for<classifier>(data, how),
                                    .options = options,
                                    .purpose = stage::test,
                                    .initial = ends[0].snapshot});
  CHECK(tested[0].loop.last.at("test/accuracy") == last.at("val/accuracy"));
  CHECK(std::fmod(last.at("val/accuracy") * 203 + 1e-9, 1.0) < 1e-6);  // counts every sample once
  CHECK_THROWS_WITH((classifier{{.optimizer = "lion"}}), Catch::Contains("sgd, adam, adamw"));
}
