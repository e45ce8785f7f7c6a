// Goal: show readers the complete hook order of small runs.
#include "tests/unit/actors/fit_drive.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

std::vector<std::string> concat(std::initializer_list<std::vector<std::string>> parts) {
  std::vector<std::string> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const std::vector<std::string> set_up = {
    "connect(start)",
    "setup_environment(start)",
    "prepare_data(start)",
    "barrier(start) pre_setup",
    "setup(start)",
    "barrier(start) post_setup",
    "model_sharded_context(start)",
    "configure_model(start)",
    "model_to_device(start)",
    "setup_optimizers(start)",
    "setup_precision(start)",
    "process_dataloader(train)",
    "process_dataloader(validate)",
    "on_fit_start(start)",
    "pre_dispatch(start)",
    "dispatch(start)",
    "barrier(start) run-stage",
};

}  // namespace

TEST_CASE("a fit of one epoch with two batches and one validation batch runs these hooks",
          "[fit]") {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.clip = clip_plan{0.5, hooks::clip_gradients::algorithm::norm};
  const auto d = run_through(plan, {.train = 2, .val = {1}});
  const std::vector<std::string> sanity = {
      "on_sanity_check_start(sanity epoch 0 step 0)",
      "on_validation_model_eval(sanity epoch 0 step 0)",
      "on_validation_start(sanity epoch 0 step 0)",
      "on_validation_epoch_start(sanity epoch 0 step 0)",
      "batch_to_device(sanity epoch 0 step 0 batch 0)",
      "on_validation_batch_start(sanity epoch 0 step 0 batch 0)",
      "validation_step(sanity epoch 0 step 0 batch 0)",
      "validation_step_end(sanity epoch 0 step 0 batch 0)",
      "on_validation_batch_end(sanity epoch 0 step 0 batch 0)",
      "on_validation_epoch_end(sanity epoch 0 step 0)",
      "on_validation_end(sanity epoch 0 step 0)",
      "on_validation_model_train(sanity epoch 0 step 0)",
      "on_sanity_check_end(sanity epoch 0 step 0)",
  };
  const std::vector<std::string> steps = {
      "on_train_start(train epoch 0 step 0)",
      "on_train_epoch_start(train epoch 0 step 0)",
      "batch_to_device(train epoch 0 step 0 batch 0)",
      "on_train_batch_start(train epoch 0 step 0 batch 0)",
      "optimizer_step(train epoch 0 step 0 batch 0) closure of 11",
      "training_step(train epoch 0 step 0 batch 0)",
      "training_step_end(train epoch 0 step 0 batch 0)",
      "on_before_zero_grad(train epoch 0 step 0 batch 0)",
      "optimizer_zero_grad(train epoch 0 step 0 batch 0)",
      "pre_backward(train epoch 0 step 0 batch 0)",
      "on_before_backward(train epoch 0 step 0 batch 0)",
      "backward(train epoch 0 step 0 batch 0) window 0..0 synchronize",
      "on_after_backward(train epoch 0 step 0 batch 0)",
      "post_backward(train epoch 0 step 0 batch 0)",
      "on_before_optimizer_step(train epoch 0 step 0 batch 0)",
      "clip_gradients(train epoch 0 step 0 batch 0) norm 0.5",
      "on_train_batch_end(train epoch 0 step 1 batch 0)",
      "batch_to_device(train epoch 0 step 1 batch 1)",
      "on_train_batch_start(train epoch 0 step 1 batch 1)",
      "optimizer_step(train epoch 0 step 1 batch 1) closure of 11",
      "training_step(train epoch 0 step 1 batch 1)",
      "training_step_end(train epoch 0 step 1 batch 1)",
      "on_before_zero_grad(train epoch 0 step 1 batch 1)",
      "optimizer_zero_grad(train epoch 0 step 1 batch 1)",
      "pre_backward(train epoch 0 step 1 batch 1)",
      "on_before_backward(train epoch 0 step 1 batch 1)",
      "backward(train epoch 0 step 1 batch 1) window 1..1 synchronize",
      "on_after_backward(train epoch 0 step 1 batch 1)",
      "post_backward(train epoch 0 step 1 batch 1)",
      "on_before_optimizer_step(train epoch 0 step 1 batch 1)",
      "clip_gradients(train epoch 0 step 1 batch 1) norm 0.5",
      "on_train_batch_end(train epoch 0 step 2 batch 1)",
  };
  const std::vector<std::string> behind = {
      "on_validation_model_zero_grad(validate epoch 0 step 2)",
      "on_validation_model_eval(validate epoch 0 step 2)",
      "on_validation_start(validate epoch 0 step 2)",
      "on_validation_epoch_start(validate epoch 0 step 2)",
      "batch_to_device(validate epoch 0 step 2 batch 0)",
      "on_validation_batch_start(validate epoch 0 step 2 batch 0)",
      "validation_step(validate epoch 0 step 2 batch 0)",
      "validation_step_end(validate epoch 0 step 2 batch 0)",
      "on_validation_batch_end(validate epoch 0 step 2 batch 0)",
      "on_validation_epoch_end(validate epoch 0 step 2)",
      "on_validation_end(validate epoch 0 step 2)",
      "on_validation_model_train(validate epoch 0 step 2)",
      "on_train_epoch_end(train epoch 0 step 2)",
      "optimizer_state(train epoch 1 step 2)",
      "on_save_checkpoint(train epoch 1 step 2)",
      "save_checkpoint(train epoch 1 step 2) after 2 steps",
      "on_train_end(train epoch 1 step 2)",
      "post_dispatch(start)",
      "on_fit_end(start)",
  };
  CHECK(lines(d.hooks) == concat({set_up, sanity, steps, behind}));
  CHECK(d.runs == std::vector<std::size_t>{13, 4, 13, 1, 16, 15, 12, 1, 3, 3});
  CHECK(d.steps == std::vector<std::int64_t>{1, 2});
  REQUIRE(d.end);
  CHECK(d.end->why == stop_reason::none);
  CHECK(d.end->loop.epoch == 1);
  CHECK(d.end->loop.batch == 0);
  CHECK(d.end->loop.steps == 2);
  CHECK(d.end->loop.samples == 14);
  CHECK(d.end->loop.last == metrics{{"val/loss", 1.0}});
  REQUIRE(d.known.size() == 1);  // those of the sanity check are dropped
  CHECK(d.known[0].at == position{stage::validate, 0, 2, 2});
}

TEST_CASE("with a strategy that accumulates itself every micro-batch has an optimizer step",
          "[fit]") {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.accumulate = 2;
  plan.clip = clip_plan{0.5, hooks::clip_gradients::algorithm::norm};
  plan.val_batches = std::int64_t{0};
  facts known{.train = 3, .val = {}};
  known.optimizers.step_schedulers = true;
  known.optimizers.accumulates_itself = true;
  const auto d = run_through(plan, known);
  std::vector<std::string> own;
  for (const auto& h : d.hooks)
    for (const std::string_view shown :
         {"optimizer_step", "optimizer_zero_grad", "backward", "clip_gradients",
          "lr_scheduler_step", "on_train_batch_end"})
      if (name(h) == shown) own.push_back(lines({h}).front());
  CHECK(own == std::vector<std::string>{
                   "optimizer_step(train epoch 0 step 0 batch 0) closure of 11",
                   "optimizer_zero_grad(train epoch 0 step 0 batch 0)",
                   "backward(train epoch 0 step 0 batch 0) window 0..1",
                   "clip_gradients(train epoch 0 step 0 batch 0) norm 0.5",
                   "on_train_batch_end(train epoch 0 step 0 batch 0)",
                   "optimizer_step(train epoch 0 step 0 batch 1) closure of 9",
                   "backward(train epoch 0 step 0 batch 1) window 0..1 synchronize",
                   "clip_gradients(train epoch 0 step 0 batch 1) norm 0.5",
                   "lr_scheduler_step(train epoch 0 step 1 batch 1) every step",
                   "on_train_batch_end(train epoch 0 step 1 batch 1)",
                   "optimizer_step(train epoch 0 step 1 batch 2) closure of 11",
                   "optimizer_zero_grad(train epoch 0 step 1 batch 2)",
                   "backward(train epoch 0 step 1 batch 2) window 2..2 synchronize",
                   "clip_gradients(train epoch 0 step 1 batch 2) norm 0.5",
                   "lr_scheduler_step(train epoch 0 step 2 batch 2) every step",
                   "on_train_batch_end(train epoch 0 step 2 batch 2)",
               });
  CHECK(d.steps == std::vector<std::int64_t>{1, 2});
}

namespace {

// One epoch of two batches: the first one in two parts, the second one in one.
facts split_facts() {
  facts known{.train = 2, .val = {}};
  known.optimizers.splits_batches = true;
  known.splits = {2, 1};
  return known;
}

fit_plan split_plan() {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.val_batches = std::int64_t{0};
  return plan;
}

}  // namespace

TEST_CASE("a batch that is split in time has an optimizer step for each part and is one step",
          "[fit]") {
  auto known = split_facts();
  known.optimizers.step_schedulers = true;
  const auto d = run_through(split_plan(), known);
  std::vector<std::string> own;
  for (const auto& h : d.hooks)
    for (const std::string_view shown :
         {"tbptt_split_batch", "optimizer_step", "training_step", "optimizer_zero_grad",
          "lr_scheduler_step", "on_train_batch_end"})
      if (name(h) == shown) own.push_back(lines({h}).front());
  CHECK(own == std::vector<std::string>{
                   "tbptt_split_batch(train epoch 0 step 0 batch 0)",
                   "optimizer_step(train epoch 0 step 0 batch 0) closure of 10",
                   "training_step(train epoch 0 step 0 batch 0)",
                   "optimizer_zero_grad(train epoch 0 step 0 batch 0)",
                   "optimizer_step(train epoch 0 step 0 batch 0 split 1) closure of 10",
                   "training_step(train epoch 0 step 0 batch 0 split 1)",
                   "optimizer_zero_grad(train epoch 0 step 0 batch 0 split 1)",
                   "lr_scheduler_step(train epoch 0 step 1 batch 0) every step",
                   "on_train_batch_end(train epoch 0 step 1 batch 0)",
                   "tbptt_split_batch(train epoch 0 step 1 batch 1)",
                   "optimizer_step(train epoch 0 step 1 batch 1) closure of 10",
                   "training_step(train epoch 0 step 1 batch 1)",
                   "optimizer_zero_grad(train epoch 0 step 1 batch 1)",
                   "lr_scheduler_step(train epoch 0 step 2 batch 1) every step",
                   "on_train_batch_end(train epoch 0 step 2 batch 1)",
               });
  CHECK(d.steps == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("a run is interrupted at any hook of a split batch: the remaining hooks are the same",
          "[fit]") {
  const auto whole = run_through(split_plan(), split_facts());
  for (std::size_t run = 0; run < whole.runs.size(); ++run)
    for (std::size_t n = 0; n < whole.runs[run]; ++n) {
      driver d{split_plan(), split_facts()};
      d.begin();
      for (std::size_t i = 0; i < run; ++i) d.answer();
      const auto closes = [&] {
        std::size_t i = 0;
        while (i < n) {
          const auto* step = d.run->hooks[i].get_if<hooks::optimizer_step>();
          i += 1 + (step ? step->closure : 0);
        }
        return i == n;
      };
      if (!closes()) continue;
      d.cut(static_cast<std::uint32_t>(n));
      d.drain();
      CAPTURE(run, n);
      CHECK(d.hooks == whole.hooks);
      CHECK(d.steps == whole.steps);
    }
}

TEST_CASE("the generation closes in any hook of a split batch: the batch begins anew", "[fit]") {
  auto plan = split_plan();
  plan.keeps_points = true;
  const auto whole = run_through(plan, split_facts());
  driver d{plan, split_facts()};
  d.begin();
  while (d.steps.empty()) d.answer();
  REQUIRE(names({d.run->hooks.back()}) == "tbptt_split_batch");
  d.answer();  // the parts are known
  d.interrupt(0);
  d.give(fit_events::resume{});
  CHECK(names({d.run->hooks.back()}) == "tbptt_split_batch");
  d.drain();
  CHECK(d.steps == whole.steps);
  CHECK(d.end == whole.end);
}

TEST_CASE("a batch is split in time and gradients are accumulated: the error names the option",
          "[fit]") {
  auto plan = split_plan();
  plan.accumulate = 2;
  CHECK_THROWS_WITH(run_through(plan, split_facts()),
                    Catch::Contains("accumulate_grad_batches must be 1, not 2"));
}

TEST_CASE("tbptt_split_batch returns 0 parts: the machine throws an internal_error", "[fit]") {
  const auto nothing = [](const hook& h, hook_outcome& out) {
    if (h.is<hooks::tbptt_split_batch>()) out.splits = 0;
  };
  CHECK_THROWS_WITH(run_through(split_plan(), split_facts(), nothing),
                    Catch::Contains("tbptt_split_batch brought no splits"));
}
