// Goal: shrinking. A user's learner with a bug that one fault reveals becomes a case with that one
// fault and a handful of choices, which replays from its text.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "apps/testing/case.hpp"
#include "troupe/detail/data_order.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr const char* schedule_oracle = "the learning rate's schedule knows its step";

// The bug: a learning-rate schedule counts steps, and the count is missing in checkpoints.
struct schedules {
  std::map<std::int32_t, std::int64_t> counts;  // by rank
};

class scheduled_learner final : public learner {
public:
  scheduled_learner(std::unique_ptr<learner> inner, std::int32_t rank, std::shared_ptr<schedules> s)
      : inner_(std::move(inner)) {
    s->counts[rank] = 0;
  }
  void bind(std::shared_ptr<communicator> world, generation_id generation) override {
    inner_->bind(std::move(world), generation);
  }
  hook_outcome on(const hook& h, const closure& c) override { return inner_->on(h, c); }
  value result() override { return inner_->result(); }

private:
  std::unique_ptr<learner> inner_;
};

class scheduled_recipe final : public learner_recipe {
public:
  scheduled_recipe(recipe_ptr inner, std::shared_ptr<schedules> s)
      : inner_(std::move(inner)), schedules_(std::move(s)) {}
  std::unique_ptr<learner> make(const learner_context& context) const override {
    return std::make_unique<scheduled_learner>(inner_->make(context), context.rank, schedules_);
  }

private:
  recipe_ptr inner_;
  std::shared_ptr<schedules> schedules_;
};

class user final : public extension {
public:
  recipe_ptr recipe(recipe_ptr inner) override {
    return std::make_shared<scheduled_recipe>(std::move(inner), schedules_);
  }
  void stepped(const finished_step& what, const complain_fn& complain) override {
    const auto count = ++schedules_->counts[what.rank];
    if (count != what.step)
      complain({schedule_oracle, "it counts " + std::to_string(count), what.step, what.rank});
  }

private:
  std::shared_ptr<schedules> schedules_ = std::make_shared<schedules>();
};

run_plan users_plan() {
  run_plan plan;
  plan.faults.may = fault_set::all();
  plan.extensions = {[] { return std::make_unique<user>(); }};
  return plan;
}

std::uint64_t applied(const run_report& r) {
  return std::accumulate(r.faults.begin(), r.faults.end(), std::uint64_t{0});
}

}  // namespace

TEST_CASE("a user's bug shrinks to one fault and few choices and replays from its text",
          "[case][shrink]") {
  const job_spec job{.ranks = 4, .steps = 12, .checkpoint_every = 3};
  const auto plan = users_plan();
  budget of;
  of.runs = 400;
  of.violations = 12;
  const auto all = explore(job, plan, of);
  REQUIRE(all.violating.size() == 12);
  // One fault is enough. Removing one choice after the other may end where several are needed.
  int single = 0;
  for (const auto& found : all.violating) {
    const auto whole = case_of(found, variant_of(job, plan, of, found.seed));
    CHECK(whole.expect == schedule_oracle);
    auto reference = reference_of(whole.what.job);
    auto small = shrink(whole, reference);
    INFO("seed " << found.seed << ": " << found.taken.size() << " choices\n" << to_text(small));
    REQUIRE(small.taken);
    CHECK(small.taken->size() <= 12);

    auto from_text = parse_case(to_text(small), plan);
    from_text.what.plan.simulation.record = true;
    const auto once = replay(from_text, reference);
    CHECK(once.violates(schedule_oracle));
    CHECK(applied(once) <= 3);
    single += applied(once) == 1;
    CHECK(replay(from_text, reference).hashes == once.hashes);
    CHECK(remarks(from_text, once).empty());
    const auto text = render(once, "do it again");
    CHECK_THAT(text, Catch::Contains(schedule_oracle) && Catch::Contains("replay    do it again"));
    CHECK_THAT(text, Catch::Contains("1) ") || Catch::Contains("rare_paths x1"));
  }
  CHECK(single >= 11);
}

TEST_CASE("an observer that the violation does not need is removed", "[case][shrink]") {
  const job_spec job{.ranks = 3, .steps = 8, .checkpoint_every = 2};
  auto plan = users_plan();
  plan.observer = test_observer::receives;
  budget of;
  of.runs = 200;
  of.vary_job = false;
  const auto all = explore(job, plan, of);
  REQUIRE_FALSE(all.clean());
  const auto& found = all.violating.front();
  const auto whole = case_of(found, variant_of(job, plan, of, found.seed));
  REQUIRE(whole.what.plan.observer == test_observer::receives);
  auto reference = reference_of(job);
  const auto small = shrink(whole, reference);
  INFO(to_text(small));
  CHECK(small.what.plan.observer == test_observer::none);
  CHECK(replay(small, reference).violates(schedule_oracle));
}

TEST_CASE("a case without a violation is returned unchanged", "[case][shrink]") {
  run_case c;
  c.what.job.ranks = 2;
  c.what.job.steps = 3;
  c.expect = "steps are one chain";
  auto reference = reference_of(c.what.job);
  const auto same = shrink(c, reference);
  CHECK_FALSE(same.taken);
  CHECK(to_text(same) == to_text(c));
  CHECK(remarks(c, replay(c, reference)).size() == 1);
}

TEST_CASE("shrinking keeps its budget of runs; a long run counts as several", "[case][shrink]") {
  const auto [ranks, steps, allowed] = GENERATE(std::tuple{3, 8, 5}, std::tuple{40, 600, 3});
  job_spec job{.ranks = ranks, .steps = steps, .checkpoint_every = steps / 4};
  std::uint64_t runs = 0;
  auto plan = users_plan();
  plan.extensions.push_back([&runs] { return ++runs, std::make_unique<extension>(); });
  budget of;
  of.runs = 100;
  of.violations = 1;
  const auto all = explore(job, plan, of);
  REQUIRE_FALSE(all.clean());
  const auto& found = all.violating.front();
  CHECK((found.events > 250'000) == (steps > 8));
  auto reference = reference_of(variant_of(job, plan, of, found.seed).job);
  runs = 0;
  shrink(case_of(found, variant_of(job, plan, of, found.seed)), reference, 5);
  CHECK(runs <= static_cast<std::uint64_t>(allowed) + 1);  // the first look
}

TEST_CASE("removing one kind of fault leaves the others unchanged", "[case][shrink]") {
  fault_options options;
  options.may = fault_set::all();
  options.per_attempt = 6;
  const auto faults_of = [&](choices from, fault_set exist) {
    from.record();
    std::vector<attempt_faults> all;
    std::vector<storage_fault> storage;
    for (std::uint32_t attempt = 0; attempt < 3; ++attempt) {
      all.push_back(draw_faults(from, options, exist, attempt, 5, std::chrono::seconds{1}, 900));
      for (int i = 0; i < 60; ++i) storage.push_back(draw_storage_fault(from, all.back()));
    }
    return std::tuple{all, storage, from.taken()};
  };
  const auto kind_of = [](const storage_fault& f) {
    return static_cast<fault>(static_cast<std::size_t>(fault::storage_error) +
                              static_cast<std::size_t>(f.what) - 1);
  };
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    auto exist = fault_set::none();
    for (std::size_t f = 0; f < fault_kinds; ++f)
      if (seed < 100 || mix(seed * 64 + f) % (2 + seed % 3) == 0) exist.add(static_cast<fault>(f));
    const auto gone = static_cast<fault>(seed % fault_kinds);
    INFO("seed " << seed << ": " << exist.text() << " without " << to_string(gone));
    const auto [before, storage_before, taken] = faults_of(choices::of_seed(seed), exist);
    auto left = exist;
    left.remove(gone);
    const auto [after, storage_after, unused] =
        faults_of(choices::of_list(seed, without_fault(taken, exist, gone)), left);
    for (std::size_t a = 0; a < before.size(); ++a) {
      auto faults = before[a].scheduled;
      std::erase_if(faults, [&](const scheduled_fault& s) { return s.what == gone; });
      CHECK(after[a].scheduled == faults);
    }
    for (std::size_t i = 0; i < storage_before.size(); ++i) {
      const auto& b = storage_before[i];
      const auto& a = storage_after[i];
      if (b.what == storage_fault::kind::none || kind_of(b) == gone) {
        CHECK(a.what == storage_fault::kind::none);
      } else {
        CHECK(a.what == b.what);
        CHECK(a.draw == b.draw);
        CHECK(a.lasts == b.lasts);
      }
    }
  }
}
