// Goal: each kind of fault occurs, so that a campaign without a violation means something. A NaN
// reaches all ranks in one step, and a module that checks for it can stop the run.
#include "apps/testing/explore.hpp"
#include "apps/testing/simulated_job.hpp"
#include "backends/simulated/modular_learner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

exploration campaign(fault only, std::uint64_t runs) {
  job_spec what;
  what.ranks = 3;
  run_plan plan;
  plan.faults.may.add(only);
  plan.faults.swarm = false;
  budget of;
  of.first_seed = 1;
  of.runs = runs;
  return explore(what, plan, of);
}

struct seen_step {
  std::int32_t rank;
  std::int64_t step;
  bool nan;
  std::uint64_t digest;
};

struct nan_run {
  job_outcome outcome;
  std::vector<seen_step> steps;
};

// Rank 1 has a NaN in its gradient of step 2, counted from 0.
nan_run train_with_nan(std::uint64_t seed, bool look) {
  nan_run all;
  modular_options payload;
  payload.samples = 30;
  payload.poisons = [](const learner_context& c, const position& at) {
    return c.rank == 1 && at.step == 2;
  };
  payload.stepped = [&](const finished_step& s) {
    all.steps.push_back({s.rank, s.step, s.state->is_nan(), s.digest});
    if (look && s.state->is_nan()) throw std::domain_error("not finite");
  };
  job what;
  what.options.ranks = 3;
  what.options.batch_size = 2;
  what.options.accumulate_grad_batches = 1 + static_cast<std::int64_t>(seed % 2);
  what.options.max_epochs = 10;
  what.options.max_steps = 6;
  what.recipe = std::make_shared<modular_recipe>(payload);
  simulation in{choices::of_seed(seed), {}};
  simulated_job r{in, {}};
  r.begin(what);
  while (in.step()) continue;
  REQUIRE(r.ended());
  all.outcome = *r.outcome();
  return all;
}

}  // namespace

TEST_CASE("campaigns apply every kind of fault", "[simulated][faults][campaign]") {
  for (std::size_t f = 0; f < fault_kinds; ++f) {
    const auto kind = static_cast<fault>(f);
    INFO(to_string(kind));
    const auto all = campaign(kind, 16);
    for (const auto& r : all.violating)
      for (const auto& v : r.violations) UNSCOPED_INFO("seed " << r.seed << ": " << v);
    CHECK(all.clean());
    CHECK(all.faults[f] > 0);
    for (std::size_t other = 0; other < fault_kinds; ++other)
      if (other != f) CHECK(all.faults[other] == 0);
  }
}

TEST_CASE("NaN in one rank's gradient: all ranks have it after the step, and training goes on",
          "[simulated][faults]") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    INFO("seed " << seed);
    const auto all = train_with_nan(seed, false);
    REQUIRE(all.outcome.ok());
    CHECK(all.outcome.loop.steps == 6);
    CHECK(all.steps.size() == 18);
    for (const auto& s : all.steps) {
      CHECK(s.nan == (s.step > 2));
      for (const auto& other : all.steps)
        if (other.step == s.step) CHECK(other.digest == s.digest);
    }
    for (const auto& w : all.outcome.result.get_if<value_list>()->items)
      CHECK(static_cast<std::uint64_t>(*w.get_if<std::int64_t>()) == modular_state::not_a_number);
  }
}

TEST_CASE("a module that checks for NaN stops the run in that step", "[simulated][faults]") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    INFO("seed " << seed);
    const auto all = train_with_nan(seed, true);
    REQUIRE(all.outcome.failed_with);
    const auto& first = all.outcome.failed_with->record;
    CHECK(first.type == "std::domain_error");
    CHECK(first.hook == "optimizer_step");
    CHECK(first.step == 2);
    for (const auto& s : all.steps) CHECK(s.step <= 3);
  }
}

TEST_CASE("an added kind of fault changes no draw of the others", "[simulated][faults]") {
  fault_options options;
  options.may = fault_set::all();
  options.per_attempt = 5;
  std::size_t moved = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed)
    for (std::size_t i = 0; i < fault_kinds; ++i) {
      const auto gone = static_cast<fault>(i);
      CAPTURE(seed, to_string(gone));
      auto fewer = fault_set::all();
      fewer.remove(gone);
      auto with = choices::of_seed(seed);
      auto without = choices::of_seed(seed);
      const auto draw = [&](choices& from, fault_set exist) {
        return draw_faults(from, options, exist, 0, 5, std::chrono::seconds{1}, 900);
      };
      const auto all = draw(with, fault_set::all());
      const auto others = draw(without, fewer);
      REQUIRE(all.scheduled.size() == others.scheduled.size());
      for (std::size_t n = 0; n < all.scheduled.size(); ++n) {
        auto should = all.scheduled[n];
        if (should.what == gone) should.what = others.scheduled[n].what, ++moved;
        CHECK(others.scheduled[n] == should);
      }
      if (gone != fault::stale_message)
        CHECK(others.stale_messages_per_million == all.stale_messages_per_million);
      for (int n = 0; n < 40; ++n) {
        auto should = draw_storage_fault(with, all);
        const auto is = draw_storage_fault(without, others);
        const auto applied = static_cast<std::size_t>(fault::storage_error) +
                             static_cast<std::size_t>(should.what) - 1;
        if (should.what != storage_fault::kind::none && applied == i)
          should.what = is.what, ++moved;
        CHECK(is == should);
      }
    }
  CHECK(moved > 100);
}
