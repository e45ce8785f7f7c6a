// Goal: a fit may resume an epoch with another number of ranks or another batch size. The machine
// continues to count micro-batches from a cursor in samples.
#include "tests/unit/actors/fit_drive.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

// The state after 10 micro-batches of 32 of an epoch of 960 samples.
loop_state ten_of_32() {
  loop_state loop;
  loop.batch = loop.steps = 10;
  loop.samples = loop.cursor = 320;
  return loop;
}

fit_plan resuming() {
  fit_plan plan;
  plan.resume = "here";
  plan.max_epochs = 2;
  return plan;
}

// Runs a fit whose micro-batches hold `each` samples, resumed at `from`.
driver cut_by(std::int64_t each, const fit_plan& plan, const loop_state& from) {
  facts known;
  known.train = (960 + each - 1) / each;
  known.restored = from;
  std::int64_t consumed = from.cursor;
  const auto more = [=](const hook& h, hook_outcome& out) mutable {
    for (auto& loader : out.loaders)
      if (loader.stage == stage::train) loader.samples = 960, loader.batch_samples = each;
    if (!h.is<hooks::optimizer_step>()) return;
    if (where(h).batch == 0) consumed = 0;
    out.samples = std::min(each * plan.accumulate, 960 - consumed);
    consumed += out.samples;
  };
  return run_through(plan, known, more);
}

std::int64_t batches_of(const driver& d, std::int64_t epoch) {
  return std::ranges::count_if(d.hooks, [&](const hook& h) {
    return h.is<hooks::training_step>() && where(h).epoch == epoch;
  });
}

}  // namespace

TEST_CASE("an epoch resumed with larger micro-batches ends exactly at its last sample", "[fit]") {
  const auto d = cut_by(48, resuming(), ten_of_32());
  REQUIRE(d.end);
  CHECK(batches_of(d, 0) == 14);  // 640 samples left: 13 times 48, then 16
  CHECK(batches_of(d, 1) == 20);
  CHECK(d.end->loop.samples == 2 * 960);
  CHECK(d.end->loop.cursor == 0);
  CHECK(d.end->loop.steps == 10 + 14 + 20);
}

TEST_CASE("an epoch resumed with smaller micro-batches ends exactly at its last sample", "[fit]") {
  const auto d = cut_by(10, resuming(), ten_of_32());
  REQUIRE(d.end);
  CHECK(batches_of(d, 0) == 64);
  CHECK(batches_of(d, 1) == 96);
  CHECK(d.end->loop.samples == 2 * 960);
}

TEST_CASE("a checkpoint stores the samples consumed in its epoch as a cursor", "[fit]") {
  auto plan = resuming();
  plan.checkpoint.every_n_steps = 4;
  const auto d = cut_by(48, plan, ten_of_32());
  for (const auto& taken : d.snapshots) CHECK(taken.cursor == taken.samples - 960 * taken.epoch);
  REQUIRE(d.snapshots.size() > 4);
  CHECK(d.snapshots[0].steps == 12);
  CHECK(d.snapshots[0].cursor == 320 + 2 * 48);
}

TEST_CASE("limits and windows and validation count micro-batches from before the resume", "[fit]") {
  auto plan = resuming();
  plan.max_epochs = 1;
  plan.train_batches = std::int64_t{13};
  CHECK(batches_of(cut_by(48, plan, ten_of_32()), 0) == 3);  // 10 of the 13 were done before
  plan.train_batches = 0.5;
  CHECK(batches_of(cut_by(48, plan, ten_of_32()), 0) == 2);  // the limit is 12 of 24
  plan.train_batches = 1.0;
  plan.accumulate = 5;
  CHECK(cut_by(48, plan, ten_of_32()).end->loop.steps == 10 + 3);  // windows 10..14, 15..19, 20..23
  plan.accumulate = 1;
  plan.val_check_interval = std::int64_t{12};
  const auto d = cut_by(48, plan, ten_of_32());
  CHECK(std::ranges::count_if(d.hooks, [](const hook& h) {
          return h.is<hooks::on_validation_start>();
        }) == 2);  // after micro-batches 12 and 24
}

TEST_CASE("a resume after the last sample of an epoch ends that epoch", "[fit]") {
  auto from = ten_of_32();
  from.batch = from.steps = 30;
  from.samples = from.cursor = 960;
  auto plan = resuming();
  plan.max_epochs = 1;
  const auto d = cut_by(48, plan, from);
  CHECK(batches_of(d, 0) == 0);
  CHECK(d.end->loop.epoch == 1);
  CHECK(d.end->loop.samples == 960);
}
