// Goal: a fit that returns to its last point, wherever it is interrupted, does what the fit without
// interruption does, and redoes at most one step.
#include <algorithm>
#include <random>
#include <sstream>

#include "tests/unit/actors/fit_drive.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

fit_plan plan_with_points() {
  fit_plan plan;
  plan.max_epochs = 2;
  plan.accumulate = 2;
  plan.val_check_interval = std::int64_t{2};
  plan.checkpoint.every_n_steps = 2;
  plan.stop_early = {{.patience = 100}};
  plan.keeps_points = true;
  return plan;
}

// In jobs that can restart, the values of a step are known before its weights are updated.
void log_steps(const hook& h, hook_outcome& out) {
  if (const auto* step = h.get_if<hooks::optimizer_step>())
    out.logged["train/loss"] = static_cast<double>(step->at.step);
}

const facts known{.train = 5, .val = {2}};

driver undisturbed() { return run_through(plan_with_points(), known, log_steps); }

// Every row once: a row that is shown again must be the same.
std::vector<std::string> rows(const driver& d) {
  std::vector<std::string> all;
  for (const auto& row : d.known) {
    std::ostringstream text;
    text << fit_action{row};
    if (std::ranges::find(all, text.str()) == all.end()) all.push_back(text.str());
  }
  return all;
}

std::vector<std::int64_t> steps_saved(const driver& d) {
  std::vector<std::int64_t> all;
  for (const auto& loop : d.snapshots) all.push_back(loop.steps);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void check_same(const driver& d, const driver& wanted) {
  REQUIRE(d.end);
  CHECK(d.end->loop == wanted.end->loop);
  CHECK(d.end->why == wanted.end->why);
  CHECK(d.steps == wanted.steps);
  CHECK(rows(d) == rows(wanted));
  CHECK(steps_saved(d) == steps_saved(wanted));
}

}  // namespace

TEST_CASE("a fit that is interrupted anywhere ends like the fit without interruption", "[fit]") {
  const auto wanted = undisturbed();
  REQUIRE(wanted.steps.size() == 6);
  // Where to interrupt: a run after set-up, and a number of its hooks.
  const auto at_run = GENERATE(range(2, 24));
  const auto hooks_handled = GENERATE(0U, 1U, 5U, 14U, 27U, 28U, 100U);
  CAPTURE(at_run, hooks_handled);
  driver d{plan_with_points(), known, log_steps};
  d.begin();
  for (int i = 0; i < at_run; ++i) d.answer();
  d.interrupt(hooks_handled);
  d.give(fit_events::resume{});
  d.drain();
  check_same(d, wanted);
}

// Replay: the seed is printed; run this test with `-c SEED`.
TEST_CASE("a fit that is interrupted at random ends like the fit without interruption", "[fit]") {
  const auto seed = GENERATE(range(std::uint64_t{1}, std::uint64_t{300}));
  CAPTURE(seed);
  std::mt19937_64 random{seed};
  const auto wanted = undisturbed();
  driver d{plan_with_points(), known, log_steps};
  d.begin();
  for (int interruptions = 0; d.run || !d.end;) {
    if (d.machine.point().number > 0 && interruptions < 20 && random() % 3 == 0) {
      ++interruptions;
      d.interrupt(static_cast<std::uint32_t>(random() % 40));
      d.give(fit_events::resume{});
    } else {
      d.answer();
    }
  }
  check_same(d, wanted);
}

TEST_CASE("a rank that joins at any point goes on like the rank whose state it received", "[fit]") {
  const auto at_run = GENERATE(range(2, 24));
  driver holder{plan_with_points(), known, log_steps};
  holder.begin();
  for (int i = 0; i < at_run; ++i) holder.answer();
  holder.interrupt(0);
  driver joiner{plan_with_points(), known, log_steps};
  joiner.give(fit_events::set_up{holder.machine.point().trained});
  joiner.drain();
  REQUIRE(joiner.set_up);
  joiner.machine.adopt(holder.machine.point());
  const auto from = holder.hooks.size();
  const auto mine = joiner.hooks.size();
  holder.give(fit_events::resume{});
  joiner.give(fit_events::resume{});
  holder.drain();
  joiner.drain();
  CHECK(std::vector<hook>(joiner.hooks.begin() + static_cast<std::ptrdiff_t>(mine),
                          joiner.hooks.end()) ==
        std::vector<hook>(holder.hooks.begin() + static_cast<std::ptrdiff_t>(from),
                          holder.hooks.end()));
  REQUIRE(joiner.end);
  CHECK(joiner.end->loop == holder.end->loop);
  CHECK(std::ranges::count_if(joiner.hooks,
                              [](const hook& h) { return h.is<hooks::on_train_start>(); }) == 1);
}

TEST_CASE("a rank that joins a fit resumed from its own checkpoint has no sanity check", "[fit]") {
  auto from = plan_with_points();
  from.resume = "here";
  auto resumed = known;
  resumed.restored = loop_state{.epoch = 1, .steps = 3};
  driver holder{from, resumed, log_steps};
  holder.begin();
  while (holder.machine.point().number == 0) holder.answer();
  REQUIRE(holder.machine.point().then == resume_point::next::start);
  driver joiner{plan_with_points(), known, log_steps};  // the job's own plan names no checkpoint
  joiner.give(fit_events::set_up{false});
  joiner.drain();
  joiner.machine.adopt(holder.machine.point());
  joiner.give(fit_events::resume{});
  joiner.drain();
  CHECK(std::ranges::none_of(joiner.hooks,
                             [](const hook& h) { return h.is<hooks::on_sanity_check_start>(); }));
}

TEST_CASE("a machine whose plan keeps no points has none", "[fit]") {
  auto plan = plan_with_points();
  plan.keeps_points = false;
  auto d = run_through(plan, known);
  CHECK(d.machine.point().number == 0);
  CHECK_THROWS_AS(d.machine.rewind(), internal_error);
}
