// Goal: options of the trainer that the learner carries out have Lightning's meaning.
#include <algorithm>
#include <chrono>

#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/callbacks.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using tensors = std::vector<at::Tensor>;

// Notes the inputs of rank 0.
struct noting_regression : regression {
  explicit noting_regression(std::shared_ptr<tensors> seen) : seen_(std::move(seen)) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    if (rank() == 0) seen_->push_back(b[0].clone());
    return regression::training_step(b, index);
  }

private:
  std::shared_ptr<tensors> seen_;
};

std::int64_t counted(const std::vector<hook>& hooks, std::string_view what) {
  return std::ranges::count_if(hooks, [&](const hook& h) { return name(h) == what; });
}

}  // namespace

TEST_CASE("overfit_batches: every epoch has the first batches of the data, in their order") {
  const auto data = std::make_shared<table_data>(20, 4, 9);
  auto options = quick(1, 3, 100);
  options.max_epochs = 3;
  options.overfit_batches = std::int64_t{2};
  options.limit_train_batches = std::int64_t{1};  // has no effect
  const auto seen = std::make_shared<tensors>();
  const auto ends =
      run_good_job({.recipe = recipe_for<noting_regression>(data, seen), .options = options});
  REQUIRE(seen->size() == 6);
  for (std::size_t i = 0; i < seen->size(); ++i)
    CHECK((*seen)[i].equal(data->inputs().narrow(0, i % 2 == 0 ? 0 : 3, 3)));
  CHECK(counted(ends[0].hooks, "validation_step") == 3 * 2);

  seen->clear();
  options.overfit_batches = 0.0;
  options.limit_train_batches = std::int64_t{2};
  run_good_job({.recipe = recipe_for<noting_regression>(data, seen), .options = options});
  REQUIRE(seen->size() == 6);
  CHECK_FALSE((*seen)[0].equal(data->inputs().narrow(0, 0, 3)));
}

TEST_CASE("max_time ends a fit after one more step, and waits for min_steps") {
  const auto data = std::make_shared<table_data>(20);
  auto options = quick(2, 3, 100);
  options.max_time = 1ns;
  for (const auto& end :
       run_good_job({.recipe = recipe_for<regression>(data), .options = options})) {
    CHECK(end.why == stop_reason::hook);
    CHECK(end.loop.steps == 1);
  }
  options.min_epochs = 0;
  options.min_steps = 6;  // of four steps an epoch
  for (const auto& end :
       run_good_job({.recipe = recipe_for<regression>(data), .options = options})) {
    CHECK(end.why == stop_reason::hook);
    CHECK(end.loop.steps == 6);
    CHECK(end.loop.earlier_batches == 4);
  }
}

TEST_CASE("a timer of the recipe and max_time have states of their own") {
  const auto data = std::make_shared<table_data>(20);
  auto options = quick(1, 3, 3);
  options.max_time = 1h;
  torch_plugins plugins;
  plugins.callbacks = {timer{{.max_time = 2h}}};
  const auto ends = run_good_job(
      {.recipe = make_recipe([] { return std::make_shared<regression>(); }, data, plugins),
       .options = options});
  CHECK(ends[0].loop.steps == 3);
  CHECK_THAT(ends[0].snapshot->state,
             Catch::Contains("trainer.max_time") && Catch::Contains("troupe::timer"));
}
