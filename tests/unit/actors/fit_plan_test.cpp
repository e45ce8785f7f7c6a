// Goal: options that cannot work are refused before anything starts. The error names the option,
// its value and its range.
#include "actors/fit_plan.hpp"

#include "troupe/failure.hpp"

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

std::string refusal(const std::function<void(trainer_options&)>& change) {
  trainer_options options;
  change(options);
  try {
    make_plan(options, stage::train);
  } catch (const user_error& e) {
    CHECK(e.code() == errc::bad_configuration);
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a rank that begins again keeps the drills that cannot have happened", "[options]") {
  using kind = fault_drill::kind;
  const fault_drill done{.rank = 1, .hook = "backward", .step = 6};
  const fault_drill later{.rank = 1, .hook = "backward", .step = 7};
  const fault_drill any{.what = kind::kill, .rank = 1, .hook = "on_validation_end"};
  const fault_drill stall{.what = kind::stall, .rank = 1, .hook = "on_validation_end"};
  const std::vector all{done, later, any, stall};
  CHECK(later_drills(all, 5, {}) == std::vector{later, any});
  CHECK(later_drills(all, 5, {{1, "backward"}, {0, "on_validation_end"}, {0, ""}}) ==
        std::vector{later, any});
  CHECK(later_drills(all, 5, {{1, "on_validation_end"}}) == std::vector{later});
  CHECK(later_drills(all, 5, {{1, ""}}) == std::vector{later});
}

TEST_CASE("impossible counts are refused with the option and its value and range", "[options]") {
  using options = trainer_options;
  CHECK(refusal([](options&) {}) == "accepted");
  CHECK(refusal([](options& o) { o.ranks = 0; }) == "ranks is 0, but must be at least 1");
  CHECK(refusal([](options& o) { o.ranks = -2; }) == "ranks is -2, but must be at least 1");
  CHECK(refusal([](options& o) { o.faults = {{.rank = 2, .hook = "backward"}}; }) ==
        "the rank of a fault is 2, but must be from 0 to 1");
  CHECK(refusal([](options& o) { o.faults = {{.rank = 1, .hook = "backwards"}}; }) ==
        "the hook of a fault is \"backwards\", but must be one of hook_names(), such as "
        "training_step");
  CHECK(refusal([](options& o) { o.faults = {{.rank = 1, .hook = "backward", .step = -2}}; }) ==
        "the step of a fault is -2, but must be at least 0, or undefined");
  CHECK(refusal([](options& o) { o.faults = {{.rank = 1, .hook = "backward"}}; }) == "accepted");
  CHECK(refusal([](options& o) { o.batch_size = 0; }) ==
        "batch_size is 0, but must be from 1 to 2147483647");
  CHECK(refusal([](options& o) { o.batch_size = std::numeric_limits<std::int64_t>::max(); }) ==
        "batch_size is 9223372036854775807, but must be from 1 to 2147483647");
  CHECK(refusal([](options& o) { o.accumulate_grad_batches = 0; }) ==
        "accumulate_grad_batches is 0, but must be at least 1");
  CHECK(refusal([](options& o) { o.truncated_bptt_steps = -1; }) ==
        "truncated_bptt_steps is -1, but must be at least 0");
  CHECK(refusal([](options& o) {
          o.truncated_bptt_steps = 5;
          o.accumulate_grad_batches = 2;
        }) ==
        "truncated_bptt_steps makes a step of each part of a batch, so accumulate_grad_batches "
        "must be 1, not 2: set one of them only");
  CHECK(refusal([](options& o) { o.log_every_n_steps = 0; }) ==
        "log_every_n_steps is 0, but must be at least 1");
  CHECK(refusal([](options& o) { o.num_sanity_val_steps = -2; }) ==
        "num_sanity_val_steps is -2, but must be at least 0, or -1 for all");
  CHECK(refusal([](options& o) { o.num_sanity_val_steps = -1; }) == "accepted");
  CHECK(refusal([](options& o) { o.max_epochs = -2; }) ==
        "max_epochs is -2, but must be at least 0, or -1 for no limit");
  CHECK(refusal([](options& o) { o.max_epochs = -1; }) == "accepted");
  CHECK(refusal([](options& o) { o.min_epochs = -1; }) ==
        "min_epochs is -1, but must be at least 0");
  CHECK(refusal([](options& o) { o.min_steps = -1; }) == "min_steps is -1, but must be at least 0");
  CHECK(refusal([](options& o) { o.max_time = std::chrono::seconds{0}; }) ==
        "max_time is 0 ns, but must be more than 0");
  CHECK(
      refusal([](options& o) { o.check_val_every_n_epoch = -1; }) ==
      "check_val_every_n_epoch is -1, but must be at least 1, or 0 to count batches across epochs");
  CHECK(refusal([](options& o) { o.max_steps = -1; }) == "max_steps is -1, but must be at least 0");
  CHECK(refusal([](options& o) { o.tcp_streams = 0; }) ==
        "tcp.streams is 0, but must be at least 1");
}

TEST_CASE("negative and non-finite numbers are refused", "[options]") {
  using options = trainer_options;
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refusal([](options& o) { o.gradient_clip_val = -1.0; }) ==
        "gradient_clip_val is -1, but must be a number above 0, or 0 for no clipping");
  CHECK(refusal([=](options& o) { o.gradient_clip_val = nan; }) ==
        "gradient_clip_val is nan, but must be a number above 0, or 0 for no clipping");
  CHECK(refusal([](options& o) { o.gradient_clip_val = 0.0; }) == "accepted");
  CHECK(refusal([=](options& o) { o.limit_train_batches = nan; }) ==
        "limit_train_batches is nan of all, but must be a count of batches from 0 or a share from "
        "0.0 to 1.0");
  CHECK(
      refusal([](options& o) { o.limit_val_batches = std::int64_t{-3}; }) ==
      "limit_val_batches is -3, but must be a count of batches from 0 or a share from 0.0 to 1.0");
  CHECK(refusal([](options& o) { o.overfit_batches = -1.0; }) ==
        "overfit_batches is -1 of all, but must be a count of batches from 0 or a share from 0.0 "
        "to 1.0");
  CHECK(refusal([=](options& o) { o.gradients.bucket_cap_mb = nan; }) ==
        "strategy.bucket_cap_mb is nan, but must be a number above 0");
  CHECK(refusal([](options& o) { o.gradients.powersgd.rank = 0; }) ==
        "strategy.powersgd.rank is 0, but must be at least 1");
  CHECK(refusal([](options& o) { o.gradients.powersgd.start_step = -1; }) ==
        "strategy.powersgd.start_step is -1, but must be at least 0");
  CHECK(refusal([=](options& o) { o.gradients.powersgd.min_rate = nan; }) ==
        "strategy.powersgd.min_rate is nan, but must be a number above 0");
  CHECK(refusal([=](options& o) { o.gradients.powersgd.epsilon = -nan; }) ==
        "strategy.powersgd.epsilon is -nan, but must be a number from 0");
}

TEST_CASE("impossible checkpoint and early stopping policies are refused", "[options]") {
  using options = trainer_options;
  CHECK(refusal([](options& o) { o.checkpoint.keep_last = -1; }) ==
        "checkpoint.keep_last is -1, but must be at least 1");
  CHECK(refusal([](options& o) { o.checkpoint.keep_best = -1; }) ==
        "checkpoint.keep_best is -1, but must be at least 0");
  CHECK(refusal([](options& o) { o.checkpoint.monitor = ""; }) ==
        "checkpoint.monitor is empty, but must be the name of a logged metric");
  CHECK(refusal([](options& o) {
          o.stop_early = {{"", 0, 3, false}};
        }) == "early_stopping.monitor is empty, but must be the name of a logged metric");
  CHECK(refusal([](options& o) {
          o.stop_early = {{"a", -0.5, 3, false}};
        }) == "early_stopping.min_delta is -0.5, but must be a number from 0");
}

TEST_CASE("make_plan copies the options and refuses numbers out of range", "[options]") {
  trainer_options options;
  options.gradient_clip_val = 0.0;
  options.accumulate_grad_batches = 4;
  options.one_hook_per_run = true;
  const auto plan = make_plan(options, stage::train, "a");
  CHECK_FALSE(plan.clip);
  CHECK(plan.accumulate == 4);
  CHECK(plan.one_hook_per_run);
  CHECK(plan.resume == "a");
  std::ostringstream text;
  text << plan;
  CHECK(text.str() ==
        "train epochs 3 accumulate 4 train 1 of all val 1 of all every 1 of all "
        "resume a one_hook_per_run");
  using o = trainer_options;
  CHECK(refusal([](o& x) { x.accumulate_grad_batches = 0; }) ==
        "accumulate_grad_batches is 0, but must be at least 1");
  CHECK_THAT(refusal([](o& x) { x.max_steps = -1; }), Catch::Contains("max_steps is -1"));
  CHECK_THAT(refusal([](o& x) { x.limit_val_batches = 1.5; }),
             Catch::Contains("limit_val_batches is 1.5"));
  CHECK_THAT(refusal([](o& x) { x.limit_train_batches = std::int64_t{-3}; }),
             Catch::Contains("is -3"));
  CHECK_THAT(refusal([](o& x) { x.limit_test_batches = std::nan(""); }),
             Catch::Contains("limit_test_batches"));
  CHECK_THAT(refusal([](o& x) { x.val_check_interval = 0.0; }),
             Catch::Contains("val_check_interval"));
  CHECK_THAT(refusal([](o& x) { x.val_check_interval = std::int64_t{0}; }),
             Catch::Contains("interval is 0"));
  CHECK_THAT(refusal([](o& x) { x.checkpoint.every_n_steps = 0; }),
             Catch::Contains("checkpoint.every_n_steps"));
  CHECK_THAT(refusal([](o& x) { x.fast_dev_run = -1; }), Catch::Contains("fast_dev_run"));
  CHECK_THAT(refusal([](o& x) {
               x.stop_early = {{"a", 0, -1, false}};
             }),
             Catch::Contains("patience"));
}

TEST_CASE("times of a clock are positive, in jobs that can restart too", "[options]") {
  trainer_options options;
  options.elastic.max_restarts = 1;
  options.val_check_time = std::chrono::minutes{1};
  options.checkpoint.every = std::chrono::minutes{1};
  CHECK(make_plan(options, stage::train).val_by_time);
  CHECK_THAT(refusal([](trainer_options& o) { o.checkpoint.every = std::chrono::nanoseconds{0}; }),
             Catch::Contains("more than 0"));
}
