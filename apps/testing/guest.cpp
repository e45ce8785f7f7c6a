#include "apps/testing/guest.hpp"

#include "apps/testing/field_run.hpp"

namespace troupe::testing {

namespace {

struct always_guest final : guest {
  void stepped(const field_step& what, const complain_fn& complain) override {
    if (!holds(what)) complain({name, "does not hold", what.step, what.rank});
  }
  std::string name;
  std::function<bool(const field_step&)> holds;
};

struct learner_guest final : guest {
  recipe_ptr recipe(recipe_ptr field) override { return around(std::move(field)); }
  std::function<recipe_ptr(recipe_ptr)> around;
};

}  // namespace

guest_fn always(std::string name, std::function<bool(const field_step&)> holds) {
  return [name = std::move(name), holds = std::move(holds)] {
    auto made = std::make_unique<always_guest>();
    made->name = name;
    made->holds = holds;
    return made;
  };
}

guest_fn trains(std::function<recipe_ptr(recipe_ptr field)> around) {
  return [around = std::move(around)] {
    auto made = std::make_unique<learner_guest>();
    made->around = around;
    return made;
  };
}

}  // namespace troupe::testing
