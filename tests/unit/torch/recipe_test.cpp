// Goal: a rank's process is refused if its recipe has other hyper-parameters or plug-ins than the
// job's, and accepted with the same ones. A process that waits for ranks reads no data.
#include "troupe/callback.hpp"
#include "troupe/strategy.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using Catch::Matchers::Contains;

struct net_sizes {
  std::int64_t hidden = 32;
  double rate = 0.01;
  std::vector<std::int64_t> widths = {2, 3};
  template <class F>
  void fields(F&& f) {
    f("hidden", hidden), f("rate", rate), f("widths", widths);
  }
};
struct unlisted {
  int hidden = 0;
};

struct sized {};

recipe_ptr of(const net_sizes& how, torch_plugins plugins = {}) {
  return make_recipe({}, nullptr, std::move(plugins), detail::identity_of<sized>(how));
}

// A rank's process whose main makes `there`, for a job with the recipe `here`.
auto joining(const recipe_ptr& here, const recipe_ptr& there) {
  const rank_process_options home{[there] { return there; }};
  return [=] { home.recipe(here->identity()); };
}

TEST_CASE("a field of the hyper-parameters differs: the rank's process is refused") {
  CHECK_NOTHROW(joining(of({}), of({}))());
  CHECK_THROWS_WITH(joining(of({.rate = 0.5}), of({}))(),
                    Contains("hidden=32,rate=0.5,") && Contains("rate=0.01"));
  CHECK_THROWS_AS(joining(of({.widths = {2, 4}}), of({}))(), user_error);
  CHECK_THROWS_AS(joining(of({.widths = {}}), of({}))(), user_error);
  CHECK(detail::identity_of<sized>(unlisted{1}, "text", 2) ==
        detail::identity_of<sized>(unlisted{}, "text", 2));
}

TEST_CASE("callbacks or plug-ins differ: the rank's process is refused") {
  const auto with = [](std::vector<callback_factory> all) {
    return of({}, torch_plugins{.callbacks = std::move(all)});
  };
  const auto by_function = [] { return std::shared_ptr<callback>{}; };
  CHECK_NOTHROW(
      joining(with({early_stopping{}, by_function}), with({early_stopping{}, by_function}))());
  CHECK_THROWS_WITH(joining(with({early_stopping{}}), with({}))(),
                    Contains("callback troupe::early_stopping, but"));
  CHECK_THROWS_AS(joining(with({early_stopping{}}), with({early_stopping{}, early_stopping{}}))(),
                  user_error);
  CHECK_THROWS_AS(joining(with({early_stopping{}}), with({by_function}))(), user_error);

  torch_plugins changed;
  changed.strategies["mine"] = [](strategy_parts) { return std::unique_ptr<strategy>{}; };
  CHECK_THROWS_WITH(joining(of({}, changed), of({}))(), Contains("strategy mine"));
  torch_plugins moving;
  moving.moves[typeid(unlisted)] = [](const std::any& all, c10::Device) { return all; };
  CHECK_THROWS_WITH(joining(of({}, moving), of({}))(), Contains("moves of"));
  CHECK_NOTHROW(joining(of({}, moving), of({}, moving))());
  torch_plugins placed;
  placed.environment = [](const learner_context&) { return nullptr; };
  CHECK_THROWS_AS(joining(of({}, placed), of({}))(), user_error);
}

TEST_CASE("a spare warms up: it reads no data, which no rank may have prepared yet") {
  struct unprepared : data_module {
    void setup(stage) override { FAIL("set up before prepare_data"); }
    dataset_ptr train() override {
      FAIL("read before prepare_data");
      return nullptr;
    }
  };
  make_recipe({}, std::make_shared<unprepared>())->warm_up({});
}

}  // namespace
}  // namespace troupe
