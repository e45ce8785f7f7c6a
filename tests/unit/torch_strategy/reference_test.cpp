// Goal: training ends in the same bits as the serial reference executor, for every schedule.
#include "backends/torch/reference_executor.hpp"

#include "backends/checkpoint/digest.hpp"
#include "backends/torch/classifier.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/synthetic.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

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
  options.precision = GENERATE(precision_kind::f32_true, precision_kind::bf16_mixed);
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
