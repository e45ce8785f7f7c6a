// Goal: no hook type exists that neither a fit machine nor a rank machine sends.
#include <algorithm>
#include <set>
#include <string_view>

#include "tests/unit/actors/elastic_job.hpp"
#include "tests/unit/actors/fit_drive.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using names_of_hooks = std::set<std::string_view>;

namespace {

void add_fit(names_of_hooks& into, const fit_plan& plan, const fit_drive::facts& known = {}) {
  for (const auto& one : fit_drive::run_through(plan, known).hooks) into.insert(name(one));
}

names_of_hooks of_fit_machine() {
  names_of_hooks all;
  for (const auto purpose :
       {stage::train, stage::validate, stage::test, stage::predict, stage::call}) {
    fit_plan plan;
    plan.purpose = purpose;
    add_fit(all, plan);
  }
  fit_plan plan;
  plan.clip = clip_plan{.limit = 1};
  plan.resume = "a checkpoint";
  fit_drive::facts known;
  known.restored = loop_state{};
  known.optimizers.splits_batches = true;
  known.optimizers.step_schedulers = true;
  add_fit(all, plan, known);
  return all;
}

names_of_hooks of_rank_machines() {
  names_of_hooks all;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    elastic::job one{{.max_restarts = 3, .kills = 1, .throws = 1}, seed};
    one.run();
    all.insert(one.handled.begin(), one.handled.end());
    elastic::job failing{{.max_restarts = 0, .throws = 1}, seed};
    failing.run();
    all.insert(failing.handled.begin(), failing.handled.end());
  }
  return all;
}

}  // namespace

TEST_CASE("every type of hook is sent by a fit machine or by a rank machine", "[fit]") {
  auto sent = of_fit_machine();
  sent.merge(of_rank_machines());
  names_of_hooks missing;
  for (const auto one : hook_names())
    if (!sent.contains(one)) missing.insert(one);
  CHECK(missing == names_of_hooks{});
}
