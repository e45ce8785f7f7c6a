// Goal: over the whole space of small fits, the machine emits exactly the hooks of the plain nested
// loops, in coarse and in fine runs.
#include "actors/deciders.hpp"
#include "tests/unit/actors/fit_oracle.hpp"

#include <algorithm>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

constexpr auto none = std::optional<std::int64_t>{};

// Compares without a CHECK per hook, because there are millions of hooks.
std::string difference(const std::vector<hook>& got, const std::vector<hook>& wanted) {
  const auto [g, w] = std::mismatch(got.begin(), got.end(), wanted.begin(), wanted.end());
  if (g == got.end() && w == wanted.end()) return {};
  std::ostringstream text;
  text << "hook " << (g - got.begin()) << ": got ";
  g == got.end() ? text << "nothing" : text << *g;
  text << ", wanted ";
  w == wanted.end() ? text << "nothing" : text << *w;
  return text.str();
}

std::string verdict(fit_plan plan, const facts& known) {
  const auto wanted = expected_fit(plan, known);
  const auto coarse = run_through(plan, known);
  if (!coarse.end) return "did not end";
  if (auto what = difference(coarse.hooks, wanted); !what.empty()) return what;
  for (std::size_t i = 0; i < coarse.steps.size(); ++i)
    if (coarse.steps[i] != static_cast<std::int64_t>(i) + 1) return "steps not in order";
  if (coarse.end->loop.steps != static_cast<std::int64_t>(coarse.steps.size()))
    return "steps miscounted";
  plan.one_hook_per_run = true;
  const auto fine = run_through(plan, known);
  if (auto what = difference(fine.hooks, wanted); !what.empty()) return "fine: " + what;
  if (fine.steps != coarse.steps || fine.end != coarse.end || fine.known != coarse.known)
    return "fine and coarse disagree";
  const bool broken_off = coarse.end->loop.batch != 0;
  return disorder(wanted, broken_off);
}

std::string text_of(const fit_plan& plan, const facts& known) {
  std::ostringstream text;
  text << plan << " sanity " << plan.sanity_batches << " train " << known.train << " val";
  for (const auto n : known.val) text << ' ' << n;
  return text.str();
}

bool impossible_interval(const fit_plan& plan, const facts& known) {
  const auto* count = std::get_if<std::int64_t>(&plan.val_check_interval);
  return count && plan.check_val_every_n_epoch > 0 &&
         *count > apply_limit(plan.train_batches, known.train);
}

// Runs all variations of `plan` in length: batches, limits, epochs, steps.
std::size_t over_lengths(fit_plan plan, facts known) {
  std::size_t runs = 0;
  for (std::int64_t batches = 0; batches <= 5; ++batches)
    for (const auto& limit : {batch_limit{1.0}, batch_limit{0.5}, batch_limit{std::int64_t{3}}})
      for (std::int64_t epochs = 0; epochs <= 2; ++epochs)
        for (const auto& steps : {none, std::optional<std::int64_t>{0},
                                  std::optional<std::int64_t>{1}, std::optional<std::int64_t>{4}}) {
          known.train = batches;
          plan.train_batches = limit;
          plan.max_epochs = epochs;
          plan.max_steps = steps;
          if (impossible_interval(plan, known)) continue;
          ++runs;
          const auto what = verdict(plan, known);
          if (what.empty()) continue;
          INFO(text_of(plan, known));
          CHECK(what == "");
        }
  return runs;
}

}  // namespace

TEST_CASE("for all lengths and limits the hooks equal those of the nested loops", "[fit]") {
  std::size_t runs = 0;
  for (std::int64_t accumulate = 1; accumulate <= 4; ++accumulate)
    for (const auto& every : {batch_limit{1.0}, batch_limit{0.5}, batch_limit{std::int64_t{1}},
                              batch_limit{std::int64_t{2}}}) {
      fit_plan plan;
      plan.accumulate = accumulate;
      plan.val_check_interval = every;
      runs += over_lengths(plan, {});
    }
  CHECK(runs > 2000);
}

TEST_CASE("for all validation settings the hooks equal those of the nested loops", "[fit]") {
  using loaders = std::vector<std::int64_t>;
  for (const auto& val : {loaders{}, loaders{0}, loaders{1}, loaders{2, 0, 3}})
    for (const auto& limit : {batch_limit{1.0}, batch_limit{std::int64_t{0}},
                              batch_limit{std::int64_t{1}}, batch_limit{0.0}})
      for (const std::int64_t sanity : {-1, 0, 1}) {
        fit_plan plan;
        plan.accumulate = 2;
        plan.val_check_interval = std::int64_t{1};
        plan.val_batches = limit;
        plan.sanity_batches = sanity;
        facts known;
        known.val = val;
        over_lengths(plan, known);
      }
}

TEST_CASE("for validations in some epochs, or across them, the hooks equal those of nested loops",
          "[fit]") {
  for (const std::int64_t nth : {0, 2, 3})
    for (const auto& every : {batch_limit{1.0}, batch_limit{0.5}, batch_limit{std::int64_t{1}},
                              batch_limit{std::int64_t{2}}, batch_limit{std::int64_t{4}}})
      for (std::int64_t accumulate = 1; accumulate <= 3; accumulate += 2) {
        fit_plan plan;
        plan.accumulate = accumulate;
        plan.val_check_interval = every;
        plan.check_val_every_n_epoch = nth;
        over_lengths(plan, {});
      }
}

TEST_CASE("without a limit on epochs a fit ends by its steps", "[fit]") {
  fit_plan plan;
  plan.max_epochs = -1;
  plan.max_steps = 8;
  CHECK(verdict(plan, {}) == "");
  CHECK(run_through(plan, {}).end->loop.epoch == 2);
}

TEST_CASE("for all optimizer and checkpoint settings the hooks equal those of the nested loops",
          "[fit]") {
  for (const std::int32_t optimizers : {1, 2, 3})
    for (const bool schedulers : {false, true})
      for (const auto& every :
           {none, std::optional<std::int64_t>{1}, std::optional<std::int64_t>{2}})
        for (const bool epochs : {false, true}) {
          fit_plan plan;
          plan.accumulate = 2;
          if (schedulers) plan.clip = clip_plan{1.5, hooks::clip_gradients::algorithm::value};
          plan.checkpoint.every_n_steps = every;
          plan.checkpoint.every_epoch = epochs;
          plan.checkpoint.enabled = optimizers != 3;
          facts known;
          known.optimizers = {optimizers, schedulers, schedulers, schedulers};
          over_lengths(plan, known);
          known.optimizers.accumulates_itself = true;
          over_lengths(plan, known);
        }
}

TEST_CASE("for all splits in time the hooks equal those of the nested loops", "[fit]") {
  for (const std::int32_t optimizers : {1, 2})
    for (const bool schedulers : {false, true})
      for (const auto& splits : {std::vector<std::int32_t>{1}, {3, 1, 2}}) {
        fit_plan plan;
        plan.val_check_interval = std::int64_t{1};
        plan.checkpoint.every_n_steps = 2;
        if (schedulers) plan.clip = clip_plan{1.5, hooks::clip_gradients::algorithm::norm};
        facts known;
        known.optimizers = {optimizers, schedulers, schedulers, schedulers};
        known.optimizers.splits_batches = true;
        known.splits = splits;
        over_lengths(plan, known);
      }
}

TEST_CASE("a run holds at most run_batches batches", "[fit]") {
  fit_plan plan;
  plan.accumulate = 5;
  plan.max_epochs = 1;
  plan.run_batches = 2;
  facts known;
  known.train = 7;
  known.val = {3, 2};
  CHECK(verdict(plan, known) == "");
  const auto d = run_through(plan, known);
  // Two set-up runs, two sanity runs of (2 + 2), train start, windows of 2 2 1 and 2, validation
  // runs of 2 2 1, epoch end, checkpoint, end.
  CHECK(d.runs.size() == 2 + 2 + 1 + 3 + 1 + 3 + 1 + 1 + 1);
}

namespace {

// The steps of a fit's snapshots, with ! where the monitor was measured of the snapshot's weights.
std::string snapshots_of(const fit_plan& plan, const interfere& more = {}) {
  std::string all;
  for (const auto& loop : run_through(plan, {.train = 10}, more).snapshots)
    all += std::to_string(loop.steps) + (monitored_by(plan.checkpoint.monitor, loop) ? "! " : " ");
  return all;
}

}  // namespace

TEST_CASE("a snapshot has the monitor of a validation of its own weights only", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 4;
  plan.check_val_every_n_epoch = 2;
  CHECK(snapshots_of(plan) == "10 20! 30 40! ");
  plan.checkpoint.every_n_steps = 5;
  CHECK(snapshots_of(plan) == "5 10 15 20! 25 30 35 40! ");
  plan.checkpoint.every_n_steps.reset();
  // Without a validation at the end of the epoch those inside of it are saved.
  plan.check_val_every_n_epoch = 1;
  plan.val_check_interval = 0.4;
  plan.max_epochs = 2;
  CHECK(snapshots_of(plan) == "4! 8! 10 14! 18! 20 ");
  plan.accumulate = 3;  // the validations are inside of windows
  CHECK(snapshots_of(plan) == "4 8 ");
  plan.accumulate = 1;
  plan.val_check_interval = 0.5;
  CHECK(snapshots_of(plan) == "10! 20! ");
  plan.val_check_interval = 0.4;
  plan.checkpoint.keep_best = 0;
  CHECK(snapshots_of(plan) == "10 20 ");
  plan.checkpoint.keep_best = 1;
  plan.checkpoint.every_epoch = false;
  CHECK(snapshots_of(plan) == "20 ");
}

TEST_CASE("a snapshot has the last report of a monitor of training in its epoch", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 2;
  plan.checkpoint.monitor = "train/loss";
  plan.checkpoint.every_n_steps = 3;
  const auto in_steps = [](const hook& h, hook_outcome& out) {
    if (h.is<hooks::on_train_batch_end>() && where(h).step == 4) out.logged["train/loss"] = 1;
  };
  CHECK(snapshots_of(plan, in_steps) == "3 6! 9! 10! 12 15 18 20 ");
  const auto at_ends = [](const hook& h, hook_outcome& out) {
    if (h.is<hooks::on_train_epoch_end>()) out.logged["train/loss"] = 1;
  };
  CHECK(snapshots_of(plan, at_ends) == "3 6 9 10! 12 15 18 20! ");
}

TEST_CASE("a resume from an earlier version does not know where the monitor was measured",
          "[fit]") {
  facts known{.train = 10};
  known.restored = loop_state{};
  known.restored->epoch = 1;
  known.restored->steps = 10;
  known.restored->last = {{"val/loss", 1}};
  fit_plan plan;
  plan.resume = "here";
  plan.max_epochs = 4;
  plan.check_val_every_n_epoch = 4;
  const auto taken = run_through(plan, known).snapshots;
  REQUIRE(taken.size() == 3);
  CHECK_FALSE(monitored_by("val/loss", taken[0]));
  CHECK(monitored_by("val/loss", taken[2]) == 1);
}
