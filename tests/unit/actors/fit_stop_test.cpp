// Goal: a run that is asked to stop, at any point, ends at a step boundary with its state saved. A
// run resumed from there does exactly what the uninterrupted run would have done.
#include "tests/unit/actors/fit_oracle.hpp"

#include <algorithm>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

struct shape {
  fit_plan plan;
  facts known;
};

// Fits that differ in everything that a stop may interrupt.
std::vector<shape> shapes() {
  std::vector<shape> all;
  for (const std::int64_t accumulate : {1, 2, 3})
    for (const auto& every : {batch_limit{1.0}, batch_limit{std::int64_t{1}},
                              batch_limit{std::int64_t{2}}, batch_limit{0.0}})
      for (const bool saves : {false, true}) {
        shape one;
        one.plan.max_epochs = 2;
        one.plan.accumulate = accumulate;
        one.plan.val_check_interval = every;
        if (every == batch_limit{0.0}) one.plan.val_batches = every;  // no validation
        one.plan.checkpoint.every_epoch = !saves;
        if (saves) one.plan.checkpoint.every_n_steps = 1;
        one.plan.run_batches = 2;
        one.known.train = 5;
        one.known.optimizers = {1, saves, saves, saves};
        all.push_back(one);
      }
  for (const std::int64_t nth : {0, 2}) {  // validations across epochs, and in the second only
    auto one = all.front();
    one.plan.check_val_every_n_epoch = nth;
    one.plan.val_check_interval = std::int64_t{3};
    one.plan.checkpoint.every_n_steps = 1;
    all.push_back(one);
  }
  return all;
}

using hook_list = std::vector<hook>;

hook_list behind(const hook_list& all, std::size_t n) {
  return {all.begin() + static_cast<std::ptrdiff_t>(n), all.end()};
}

std::size_t position_of(std::string_view what, const hook_list& all) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& h) { return name(h) == what; });
  return static_cast<std::size_t>(found - all.begin());
}

// Equal, but for what a validation or the stop adds to the loop state of a checkpoint.
bool alike(const hook& a, const hook& b) {
  const auto* saves_a = a.get_if<hooks::save_checkpoint>();
  const auto* saves_b = b.get_if<hooks::save_checkpoint>();
  if (!saves_a || !saves_b) return a == b;
  auto one = saves_a->loop;
  one.last = saves_b->loop.last;
  one.validated = saves_b->loop.validated;
  one.monitored = saves_b->loop.monitored;
  one.of_validation = saves_b->loop.of_validation;
  one.ended_by = saves_b->loop.ended_by;
  return where(a) == where(b) && one == saves_b->loop;
}
bool all_alike(const hook_list& a, const hook_list& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), alike);
}

// The number of hooks that `stopped` shares with the uninterrupted run before it ends.
std::size_t common(const hook_list& stopped, const hook_list& full) {
  const auto [a, b] =
      std::mismatch(stopped.begin(), stopped.end(), full.begin(), full.end(), alike);
  return static_cast<std::size_t>(a - stopped.begin());
}

// True if `tail` is the ending that a stop adds to a run.
bool is_ending(const hook_list& tail, bool saves) {
  const std::string save = saves ? "optimizer_state on_save_checkpoint save_checkpoint " : "";
  return names(tail) == save + "on_train_end post_dispatch on_fit_end";
}

// `hooks` of a run that a hook stops, without the validation that is added where none is due.
hook_list without_added(const hook_list& hooks, const facts& known, const hook_list& full) {
  const auto shared = common(hooks, full);
  const auto tail = behind(hooks, shared);
  if (tail.empty() || !tail.front().is<hooks::on_validation_model_zero_grad>()) return hooks;
  auto end = position_of("on_validation_model_train", tail) + 1;
  if (known.optimizers.plateau_schedulers) ++end;
  hook_list rest{hooks.begin(), hooks.begin() + static_cast<std::ptrdiff_t>(shared)};
  rest.insert(rest.end(), tail.begin() + static_cast<std::ptrdiff_t>(end), tail.end());
  return rest;
}

// Resumes at `from` and describes how the hooks differ from `rest`, the rest of the uninterrupted
// run.
std::string resumed_differs(shape one, const loop_state& from, const hook_list& rest) {
  one.plan.resume = "here";
  one.known.restored = from;
  const auto d = run_through(one.plan, one.known);
  const auto trains = position_of("on_train_start", d.hooks);
  const auto got = trains < d.hooks.size() ? behind(d.hooks, trains + 1)
                                           : behind(d.hooks, position_of("post_dispatch", d.hooks));
  const auto wanted =
      trains < d.hooks.size() ? rest : behind(rest, position_of("post_dispatch", rest));
  if (all_alike(got, wanted)) return {};
  return "resumed: " + names(got) + "\nwanted: " + names(wanted);
}

// Stops `one` after `runs` answered runs, with the vote plus `more` as the agreed step. Describes
// what is wrong.
std::string stopped_differs(const shape& one, const driver& full, std::size_t runs,
                            std::int64_t more) {
  driver d{one.plan, one.known};
  if (runs > 0) d.begin();
  for (std::size_t i = 1; i < runs; ++i) d.answer();
  d.give(propose_stop{{}, stop_reason::interrupt});
  if (runs == 0) d.begin();
  d.drain();
  const auto vote = d.votes.at(0);
  if (!d.end && (!d.machine.holding() || d.machine.loop().steps != vote)) return "does not hold";
  d.give(propose_stop{{}, stop_reason::terminate});  // changes nothing
  if (d.votes.back() != vote) return "votes differ";
  d.give(stop_after(vote + more, stop_reason::interrupt));
  d.give(stop_after(vote + more, stop_reason::interrupt));  // changes nothing
  d.drain();
  if (!d.end) return "does not end";
  const auto total = full.end->loop.steps;
  if (d.end->loop.steps != std::min(vote + more, total)) return "ends at another step";
  const bool natural = d.end->loop == full.end->loop;
  if (d.end->why != (natural ? stop_reason::none : stop_reason::interrupt)) return "wrong reason";
  if (natural) return d.hooks == full.hooks ? "" : "other hooks than uninterrupted";
  const auto shared = common(d.hooks, full.hooks);
  const auto tail = behind(d.hooks, shared);
  if (!is_ending(tail, true) && !is_ending(tail, false)) return "ends with " + names(tail);
  if (d.snapshots.empty() || !(d.snapshots.back() == d.end->loop)) return "not saved";
  if (auto what = disorder(d.hooks, true); !what.empty()) return what;
  return resumed_differs(one, d.end->loop, behind(full.hooks, shared));
}

std::string text_of(const shape& one) {
  std::ostringstream text;
  text << one.plan << " saves " << one.plan.checkpoint.every_n_steps.value_or(0);
  return text.str();
}

}  // namespace

TEST_CASE("a stop at any run or hook ends at the agreed step and resumes exactly", "[fit]") {
  for (auto one : shapes())
    for (const bool fine : {false, true}) {
      one.plan.one_hook_per_run = fine;
      const auto full = run_through(one.plan, one.known);
      REQUIRE(full.end);
      for (std::size_t runs = 0; runs <= full.runs.size() + 1; ++runs)
        for (const std::int64_t more : {0, 1}) {
          const auto what = stopped_differs(one, full, runs, more);
          if (what.empty()) continue;
          INFO(text_of(one) << " fine " << fine << " after " << runs << " runs, " << more);
          CHECK(what == "");
        }
    }
}

TEST_CASE("a run resumed from any of its checkpoints repeats the uninterrupted run", "[fit]") {
  for (const auto& one : shapes()) {
    const auto full = run_through(one.plan, one.known);
    for (std::size_t i = 0; i < full.hooks.size(); ++i) {
      const auto* save = full.hooks[i].get_if<hooks::save_checkpoint>();
      if (!save) continue;
      INFO(text_of(one) << " from " << lines({full.hooks[i]})[0]);
      CHECK(resumed_differs(one, save->loop, behind(full.hooks, i + 1)) == "");
    }
  }
}

TEST_CASE("a stop requested by a hook ends the run after the current step", "[fit]") {
  for (const auto& one : shapes()) {
    const auto full = run_through(one.plan, one.known);
    for (std::size_t n = 0; n < full.hooks.size(); ++n) {
      const auto stop = [&](std::size_t& seen) {
        return [&](const hook&, hook_outcome& out) {
          if (seen++ == n) out.stop = true;
        };
      };
      INFO(text_of(one) << " at hook " << n << ", " << lines({full.hooks[n]})[0]);
      std::size_t seen = 0;
      const auto d = run_through(one.plan, one.known, stop(seen));
      REQUIRE(d.end);
      const auto hooks = without_added(d.hooks, one.known, full.hooks);
      if (d.end->why == stop_reason::none) {
        CHECK(all_alike(hooks, full.hooks));
        continue;
      }
      CHECK(d.end->why == stop_reason::hook);
      const auto shared = common(hooks, full.hooks);
      const auto tail = behind(hooks, shared);
      CHECK((is_ending(tail, true) || is_ending(tail, false)));
      // The run ends at the next step boundary after the hook: a started step is finished, and no
      // further step starts.
      const auto& at = where(full.hooks[n]);
      const auto before = at.step == undefined ? 0 : at.step;
      CHECK(d.end->loop.steps >= before);
      CHECK(d.end->loop.steps <= before + 1);
      auto saved = d.snapshots.back();
      saved.ended_by = d.end->loop.ended_by;  // the hook may be one of the checkpoint itself
      CHECK(saved == d.end->loop);
      CHECK(resumed_differs(one, d.end->loop, behind(full.hooks, shared)) == "");
    }
  }
}

TEST_CASE("a stop that waits for its minimum: runs resumed from any checkpoint end where it does",
          "[fit]") {
  std::size_t waiting = 0;
  for (auto one : shapes())
    for (const std::int64_t steps : {0, 3}) {
      one.plan.min_epochs = steps == 0 ? 1 : 0;
      one.plan.min_steps = steps;
      const auto first = [](const hook& h, hook_outcome& out) {
        out.stop = h.is<hooks::training_step>() && where(h).epoch == 0 && where(h).batch == 0;
      };
      const auto full = run_through(one.plan, one.known, first);
      REQUIRE(full.end);
      INFO(text_of(one) << " min_steps " << steps);
      CHECK(full.end->why == stop_reason::hook);
      CHECK(full.end->loop.epoch >= one.plan.min_epochs);
      CHECK(full.end->loop.steps >= steps);
      CHECK(full.end->loop.pending_stop == 0);
      for (std::size_t i = 0; i < full.hooks.size(); ++i) {
        const auto* save = full.hooks[i].get_if<hooks::save_checkpoint>();
        if (!save || save->loop.pending_stop == 0) continue;
        ++waiting;
        CHECK(resumed_differs(one, save->loop, behind(full.hooks, i + 1)) == "");
      }
    }
  CHECK(waiting > 20);
}

TEST_CASE("a run cut by attention continues with its remaining hooks", "[fit]") {
  for (const auto& one : shapes()) {
    const auto full = run_through(one.plan, one.known);
    for (std::size_t cut_run = 0; cut_run < full.runs.size(); ++cut_run)
      for (std::size_t n = 0; n < full.runs[cut_run]; ++n) {
        driver d{one.plan, one.known};
        d.begin();
        for (std::size_t i = 0; i < cut_run; ++i) d.answer();
        // A closure is never cut: the lane checks attention only between the hooks that it walks
        // itself.
        const auto& run = d.run->hooks;
        bool inside = false;
        for (std::size_t i = 0; i < n; ++i)
          if (const auto* step = run[i].get_if<hooks::optimizer_step>())
            inside = inside || n <= i + step->closure;
        if (inside) {
          CHECK_THROWS_AS(d.cut(static_cast<std::uint32_t>(n)), internal_error);
          continue;
        }
        d.cut(static_cast<std::uint32_t>(n));
        d.drain();
        REQUIRE(d.end);
        if (d.hooks != full.hooks || d.end != full.end) {
          INFO(text_of(one) << " run " << cut_run << " hook " << n);
          CHECK(names(d.hooks) == names(full.hooks));
        }
      }
  }
}

TEST_CASE("skip_epoch ends the epoch at once and drops its unfinished accumulation window",
          "[fit]") {
  for (auto one : shapes())
    for (const bool fine : {false, true})
      for (std::int64_t skipped = 0; skipped < one.known.train; ++skipped) {
        one.plan.one_hook_per_run = fine;
        const auto skip = [&](const hook& h, hook_outcome& out) {
          if (name(h) == "on_train_batch_start" && where(h).epoch == 0 && where(h).batch == skipped)
            out.verdict = run_verdict::skip_epoch;
        };
        const auto full = run_through(one.plan, one.known);
        const auto d = run_through(one.plan, one.known, skip);
        INFO(text_of(one) << " fine " << fine << " skipped " << skipped);
        REQUIRE(d.end);
        CHECK(d.end->why == stop_reason::none);
        CHECK(d.end->loop.epoch == 2);
        CHECK(disorder(d.hooks, true) == "");
        const auto shared = common(d.hooks, full.hooks);
        CHECK(name(d.hooks[shared - 1]) == "on_train_batch_start");
        CHECK(name(d.hooks[shared]) == "on_train_epoch_end");
        const auto whole = skipped / one.plan.accumulate;
        const auto per_epoch = (one.known.train - 1) / one.plan.accumulate + 1;
        CHECK(d.end->loop.steps == whole + per_epoch);
        // The next epoch begins with an empty window.
        const auto rest = behind(d.hooks, shared);
        const auto back = position_of("backward", rest);
        REQUIRE(back < rest.size());
        CHECK(rest[back].get_if<hooks::backward>()->window_first() == 0);
        CHECK(position_of("optimizer_zero_grad", rest) < back);
      }
}

TEST_CASE("a stop survives when a later hook of the same run skips the epoch", "[fit]") {
  fit_plan plan;
  plan.accumulate = 2;
  plan.max_epochs = 5;
  facts known;
  known.train = 4;
  for (const bool fine : {false, true}) {
    plan.one_hook_per_run = fine;
    const auto d = run_through(plan, known, [](const hook& h, hook_outcome& out) {
      if (where(h).epoch != 0 || where(h).stage != stage::train) return;
      if (name(h) == "on_train_batch_end" && where(h).batch == 0) out.stop = true;
      if (name(h) == "on_train_batch_start" && where(h).batch == 1)
        out.verdict = run_verdict::skip_epoch;
    });
    REQUIRE(d.end);
    CHECK(d.end->why == stop_reason::hook);
    CHECK(d.end->loop.epoch == 1);
    CHECK(d.end->loop.steps == 0);
  }
}

TEST_CASE("in a fit without validations early stopping looks at the end of each epoch", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 9;
  plan.sanity_batches = 0;
  plan.stop_early = {{.monitor = "train/loss", .patience = 2}};
  const auto logs = [](const hook& h, hook_outcome& out) {
    if (name(h) == "on_train_epoch_end") out.logged["train/loss"] = 1;
  };
  const auto d = run_through(plan, {.train = 2, .val = {}}, logs);
  CHECK(d.end->why == stop_reason::early_stopping);
  CHECK(d.end->loop.epoch == 3);  // the first value is the best one, and two more are no better
  plan.stop_early.push_back({.monitor = "val/loss"});  // no validation logs it
  CHECK_THROWS_WITH(
      run_through(plan, {.train = 2, .val = {}}, logs),
      Catch::Contains("\"val/loss\", which no hook logged (logged so far: train/loss)"));
  // With validations the end of an epoch is no check of what validations log.
  plan.stop_early = {{.monitor = "val/loss", .patience = 2}};
  CHECK(run_through(plan, {.train = 2}).end->loop.epoch == 3);
}

TEST_CASE("in a fit with validations a value of training is checked at the ends of epochs",
          "[fit]") {
  fit_plan plan;
  plan.max_epochs = 9;
  plan.sanity_batches = 0;
  plan.val_check_interval = std::int64_t{1};
  plan.stop_early = {{.monitor = "train/loss", .patience = 2}};
  const auto log = [](const hook& h, hook_outcome& out) {
    if (name(h) == "on_train_epoch_end") out.logged["train/loss"] = 1;
    if (name(h) == "on_validation_epoch_end") out.logged["val/loss"] = 1;
  };
  const auto d = run_through(plan, {.train = 4}, log);
  CHECK(d.end->why == stop_reason::early_stopping);
  CHECK(d.end->loop.epoch == 3);
  plan.stop_early = {{.monitor = "train/f1", .patience = 2}};
  CHECK_THROWS_WITH(run_through(plan, {.train = 4}, log), Catch::Contains("train/loss, val/loss"));
}

TEST_CASE("a job that no rank outlives ends where its checkpoint was the last one", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 9;
  plan.sanity_batches = 0;
  facts known{.train = 3};
  const auto stops = [](const hook& h, hook_outcome& out) {
    out.stop = h.is<hooks::training_step>() && where(h).epoch == 1;
  };
  const auto full = run_through(plan, known, stops);
  REQUIRE(full.end->why == stop_reason::hook);
  const auto saved = std::ranges::find_if(full.hooks, [](const hook& h) {
    const auto* save = h.get_if<hooks::save_checkpoint>();
    return save && save->loop.ended_by != 0;
  });
  REQUIRE(saved != full.hooks.end());
  plan.resume = "here";
  known.restored = saved->get_if<hooks::save_checkpoint>()->loop;
  CHECK(run_through(plan, known).end->loop.epoch == 9);  // a caller who resumes goes on
  plan.begins_again = true;
  const auto again = run_through(plan, known);
  CHECK(again.end->why == stop_reason::hook);
  CHECK(again.end->loop.steps == full.end->loop.steps);
}

TEST_CASE("an evaluation of the checkpoint of a fit that was to stop is whole", "[fit]") {
  fit_plan plan;
  plan.purpose = GENERATE(stage::validate, stage::test, stage::predict);
  plan.resume = "here";
  facts known;
  known.restored.emplace();
  const auto of_another = run_through(plan, known);
  auto& stop = GENERATE(true, false) ? known.restored->pending_stop : known.restored->ended_by;
  stop = static_cast<std::uint8_t>(stop_reason::early_stopping);
  plan.begins_again = GENERATE(true, false);
  const auto d = run_through(plan, known);
  CHECK(d.end->why == stop_reason::none);
  CHECK(lines(d.hooks) == lines(of_another.hooks));
}

TEST_CASE("in a fit without validations plateau schedulers step at the end of each epoch",
          "[fit]") {
  fit_plan plan;
  plan.max_epochs = 2;
  plan.sanity_batches = 0;
  facts known{.train = 2, .val = {}};
  known.optimizers.plateau_schedulers = true;
  const auto d = run_through(plan, known);
  CHECK(count(d, "lr_scheduler_step") == 2);
  CHECK(position_of("lr_scheduler_step", d.hooks) ==
        position_of("on_train_epoch_end", d.hooks) + 1);
}

TEST_CASE("manual optimization: a validation leaves gradients alone", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.sanity_batches = 0;
  facts known;
  CHECK(count(run_through(plan, known), "on_validation_model_zero_grad") == 1);
  known.optimizers.manual = true;
  const auto d = run_through(plan, known);
  CHECK(count(d, "on_validation_start") == 1);
  CHECK(count(d, "on_validation_model_zero_grad") == 0);
}
