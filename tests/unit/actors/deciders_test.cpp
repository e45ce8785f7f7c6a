// Goal: decisions that change a run follow from shared values alone: when to stop, when to save,
// and which checkpoints to keep.
#include "actors/deciders.hpp"

#include "troupe/failure.hpp"

#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

constexpr auto not_a_number = std::numeric_limits<double>::quiet_NaN();

// The number of checks of `values` after which the run stops; 0: it does not stop.
std::size_t stops_after(const early_stopping_options& options, const std::vector<double>& values) {
  early_stopping_state state;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (check_early_stopping(options, state, {{"val/loss", values[i]}})) return i + 1;
  return 0;
}

early_stopping_options patient(std::int32_t checks, double min_delta = 0, bool maximize = false) {
  return {"val/loss", min_delta, checks, maximize};
}

kept_checkpoint scored(std::int64_t step, double monitor) { return {step, "", true, monitor}; }
kept_checkpoint plain(std::int64_t step) { return {step, "", false, 0}; }

checkpoint_policy keeping(std::int32_t last, std::int32_t best, bool maximize = false) {
  checkpoint_policy policy;
  policy.keep_last = last;
  policy.keep_best = best;
  policy.maximize = maximize;
  return policy;
}

using steps = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("early stopping ends the run after `patience` checks without improvement", "[deciders]") {
  CHECK(stops_after(patient(2), {3, 2, 1}) == 0);
  CHECK(stops_after(patient(2), {3, 3, 3}) == 3);
  CHECK(stops_after(patient(2), {3, 4, 2, 3, 3}) == 5);
  CHECK(stops_after(patient(1), {3, 4}) == 2);
  CHECK(stops_after(patient(0), {3}) == 0);
  CHECK(stops_after(patient(0), {3, 3}) == 2);
  CHECK(stops_after(patient(1, 0, true), {1, 2, 3}) == 0);
  CHECK(stops_after(patient(1, 0, true), {1, 2, 2}) == 3);
}

TEST_CASE("only a change larger than min_delta is an improvement", "[deciders]") {
  CHECK(stops_after(patient(1, 0.5), {3, 2.5}) == 2);
  CHECK(stops_after(patient(1, 0.5), {3, 2.25}) == 0);
  CHECK(stops_after(patient(1, 0.5, true), {1, 1.5}) == 2);
  CHECK(stops_after(patient(1, 0.5, true), {1, 1.75}) == 0);
}

TEST_CASE("NaN is never an improvement and the first number always is", "[deciders]") {
  CHECK(stops_after(patient(2), {not_a_number, not_a_number}) == 2);
  CHECK(stops_after(patient(2), {not_a_number, 1e30, not_a_number, not_a_number}) == 4);
  CHECK(stops_after(patient(2), {not_a_number, std::numeric_limits<double>::infinity(), 1}) == 0);
}

TEST_CASE("a missing monitor is an error that lists the logged metrics", "[deciders]") {
  early_stopping_state state;
  const auto text = [&](const metrics& logged) -> std::string {
    try {
      check_early_stopping(patient(1), state, logged);
    } catch (const user_error& e) {
      CHECK(e.code() == errc::bad_configuration);
      return e.what();
    }
    return "";
  };
  const auto some = text({{"train/loss", 1}, {"val/accuracy", 2}});
  CHECK(some.find("\"val/loss\"") != std::string::npos);
  CHECK(some.find("train/loss, val/accuracy") != std::string::npos);
  CHECK(text({}).find("nothing was logged") != std::string::npos);
  CHECK(state == early_stopping_state{});
}

TEST_CASE("a checkpoint is due per epoch and every n steps and at the end but once per step",
          "[deciders]") {
  checkpoint_policy policy;
  CHECK_FALSE(checkpoint_due(policy, {4, false, false}, undefined));
  CHECK(checkpoint_due(policy, {4, true, false}, undefined));
  CHECK(checkpoint_due(policy, {4, false, true}, 3));
  CHECK_FALSE(checkpoint_due(policy, {4, true, true}, 4));
  CHECK(checkpoint_due(policy, {0, false, true}, undefined));
  policy.every_n_steps = 2;
  CHECK(checkpoint_due(policy, {4, false, false}, 2));
  CHECK_FALSE(checkpoint_due(policy, {4, false, false}, 4));
  CHECK_FALSE(checkpoint_due(policy, {5, false, false}, 4));
  CHECK_FALSE(checkpoint_due(policy, {0, false, false}, undefined));
  policy.every_epoch = false;
  CHECK_FALSE(checkpoint_due(policy, {5, true, false}, 4));
  CHECK(checkpoint_due(policy, {6, true, false}, 4));
  policy.enabled = false;
  CHECK_FALSE(checkpoint_due(policy, {6, true, true}, undefined));
}

TEST_CASE("to_remove keeps the newest and the best checkpoints", "[deciders]") {
  const std::vector<kept_checkpoint> kept = {scored(1, 3.0), scored(2, 1.0), scored(3, 2.0),
                                             scored(4, not_a_number)};
  CHECK(to_remove(kept, keeping(1, 1)) == steps{1, 3});
  CHECK(to_remove(kept, keeping(1, 1, true)) == steps{2, 3});
  CHECK(to_remove(kept, keeping(2, 0)) == steps{1, 2});
  CHECK(to_remove(kept, keeping(0, 1)) == steps{1, 3});  // `latest` points to the newest
  CHECK(to_remove(kept, keeping(1, 3)) == steps{});
  CHECK(to_remove(kept, keeping(-1, 0)) == steps{});
  CHECK(to_remove(kept, keeping(1, -1)) == steps{});
  CHECK(to_remove({}, keeping(1, 1)).empty());
  REQUIRE(best_checkpoint(kept, keeping(1, 1)));
  CHECK(best_checkpoint(kept, keeping(1, 1))->step == 2);
  CHECK(best_checkpoint(kept, keeping(1, 1, true))->step == 1);
}

TEST_CASE("checkpoints without a monitor are kept by age and ties go to the older one",
          "[deciders]") {
  const std::vector<kept_checkpoint> bare = {plain(1), plain(2), plain(3)};
  CHECK(to_remove(bare, keeping(1, 1)) == steps{1, 2});
  CHECK(best_checkpoint(bare, keeping(1, 1)) == nullptr);
  const std::vector<kept_checkpoint> mixed = {scored(3, 1.0), plain(1), scored(2, 1.0), plain(4)};
  CHECK(to_remove(mixed, keeping(1, 1)) == steps{1, 3});
  const std::vector<kept_checkpoint> worst = {scored(1, not_a_number), scored(2, not_a_number),
                                              scored(3, 5.0)};
  CHECK(best_checkpoint(worst, keeping(1, 1))->step == 3);
  CHECK(to_remove(worst, keeping(1, 2)) == steps{2});
}

TEST_CASE("one removal reaches the policy's bound and keeps the newest and the best",
          "[deciders]") {
  CHECK(rc::check("to_remove", [] {
    std::vector<kept_checkpoint> kept;
    const auto count = *rc::gen::inRange(0, 12);
    for (int i = 0; i < count; ++i) {
      const auto score = *rc::gen::inRange(0, 4);
      kept.push_back(score == 3 ? plain(i) : scored(i, score == 2 ? not_a_number : score));
    }
    const auto policy = keeping(*rc::gen::inRange(-1, 4), *rc::gen::inRange(-1, 4));
    const auto gone = to_remove(kept, policy);
    RC_ASSERT(std::is_sorted(gone.begin(), gone.end()));
    std::vector<kept_checkpoint> left;
    for (const auto& one : kept)
      if (!std::count(gone.begin(), gone.end(), one.step)) left.push_back(one);
    RC_ASSERT(left.size() + gone.size() == kept.size());
    RC_ASSERT(to_remove(left, policy).empty());
    if (!kept.empty()) RC_ASSERT(left.back().step == kept.back().step);
    if (policy.keep_last >= 0 && policy.keep_best >= 0)
      RC_ASSERT(left.size() <=
                static_cast<std::size_t>(std::max(1, policy.keep_last) + policy.keep_best));
    const auto* best = best_checkpoint(kept, policy);
    if (best && policy.keep_best != 0) RC_ASSERT(best_checkpoint(left, policy)->step == best->step);
  }));
}

TEST_CASE("a snapshot is compared by a monitor that was measured of its weights", "[deciders]") {
  loop_state loop;
  loop.epoch = 2;
  loop.batch = 4;
  loop.steps = 24;
  loop.last = {{"val/loss", 0.5}};
  const auto measured = [&](std::int64_t step, std::int64_t epoch) {
    loop.monitored = {"val/loss", step, epoch};
    return monitored_by("val/loss", loop);
  };
  CHECK(measured(24, -1) == 0.5);
  CHECK_FALSE(measured(20, -1));
  CHECK(measured(21, 2) == 0.5);  // the last report of training in this epoch
  CHECK_FALSE(measured(20, 1));
  loop.epoch = 3;  // the same epoch has ended
  loop.batch = 0;
  CHECK(measured(21, 2) == 0.5);
  CHECK_FALSE(measured(20, 1));
  CHECK_FALSE(measured(-1, -1));
  loop.epoch = 0;
  CHECK_FALSE(measured(21, -1));
  CHECK(monitored_by("train/loss", loop) == std::nullopt);
  loop.last["train/loss"] = 2;  // another run's monitor: where is not known
  CHECK(monitored_by("train/loss", loop) == 2);
  loop.monitored = {};
  CHECK(monitored_by("val/loss", loop) == 0.5);
}

TEST_CASE("a keep_best monitor that no hook has logged is an error listing the metrics",
          "[deciders]") {
  checkpoint_policy policy;
  // the default policy is accepted, because a module need not validate
  CHECK_NOTHROW(check_monitor(policy, {}));
  policy.monitor = "val/scroe";
  CHECK_THROWS_WITH(check_monitor(policy, {{"val/loss", 1}, {"val/score", 0}}),
                    "checkpoint.monitor is \"val/scroe\", which no hook has logged (logged so far: "
                    "val/loss, val/score): log it, monitor one of those, or set "
                    "checkpoint.keep_best to 0");
  CHECK_NOTHROW(check_monitor(policy, {{"val/scroe", 1}}));
  policy.keep_best = 0;
  CHECK_NOTHROW(check_monitor(policy, {}));
}

TEST_CASE("the state of early stopping is found by its monitor and direction", "[deciders]") {
  const std::vector<early_stopping_options> options{{.monitor = "a"},
                                                    {.monitor = "b", .maximize = true}};
  auto begun = stop_early_states(options, {});
  REQUIRE(begun.size() == 2);
  check_early_stopping(options[0], begun[0], {{"a", 1}});
  check_early_stopping(options[1], begun[1], {{"b", 2}});
  const std::vector<early_stopping_options> turned{options[1], options[0]};
  const auto found = stop_early_states(turned, begun);
  CHECK(found == std::vector{begun[1], begun[0]});
  CHECK_FALSE(stop_early_states({{{.monitor = "a", .maximize = true}}}, begun)[0].has_best);
  CHECK_FALSE(stop_early_states({{{.monitor = "c"}}}, begun)[0].has_best);
  // Checkpoints of earlier versions have no monitor: there the place counts.
  const auto old = stop_early_states(options, {{.best = 3, .has_best = true, .waited = 1}});
  CHECK(old[0] == early_stopping_state{3, true, 1, "a", false});
  CHECK_FALSE(old[1].has_best);
}
