#include "apps/testing/extension.hpp"

#include "apps/testing/job_run.hpp"

namespace troupe::testing {

namespace {

struct oracle_extension final : extension {
  void stepped(const finished_step& what, const complain_fn& complain) override {
    if (!holds(what)) complain({name, "does not hold", what.step, what.rank});
  }
  std::string name;
  std::function<bool(const finished_step&)> holds;
};

struct learner_extension final : extension {
  recipe_ptr recipe(recipe_ptr inner) override { return around(std::move(inner)); }
  std::function<recipe_ptr(recipe_ptr)> around;
};

}  // namespace

extension_fn always(std::string name, std::function<bool(const finished_step&)> holds) {
  return [name = std::move(name), holds = std::move(holds)] {
    auto made = std::make_unique<oracle_extension>();
    made->name = name;
    made->holds = holds;
    return made;
  };
}

extension_fn trains(std::function<recipe_ptr(recipe_ptr inner)> around) {
  return [around = std::move(around)] {
    auto made = std::make_unique<learner_extension>();
    made->around = around;
    return made;
  };
}

}  // namespace troupe::testing
