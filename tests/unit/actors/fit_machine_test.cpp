// Goal: the fit machine is a regular value, refuses impossible events, and runs every kind of job.
#include "actors/fit_machine.hpp"

#include "tests/unit/actors/fit_drive.hpp"

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

template <class T>
std::string text(const T& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

// The text of the user_error, which must have the code bad_configuration.
template <class F>
std::string complaint(F&& f) {
  try {
    f();
  } catch (const user_error& e) {
    CHECK(e.code() == errc::bad_configuration);
    return e.what();
  }
  return "no complaint";
}

bool contains(const std::string& all, std::string_view part) {
  return all.find(part) != std::string::npos;
}

std::size_t count(const driver& d, std::string_view what) {
  return static_cast<std::size_t>(std::count_if(d.hooks.begin(), d.hooks.end(),
                                                [&](const hook& h) { return name(h) == what; }));
}

loop_state stands(std::int64_t epoch, std::int64_t batch, std::int64_t steps) {
  loop_state loop;
  loop.epoch = epoch;
  loop.batch = batch;
  loop.steps = steps;
  return loop;
}

}  // namespace

TEST_CASE("fit_machine is a regular value with a digest and a text in every state", "[fit]") {
  fit_plan plan;
  plan.one_hook_per_run = true;
  plan.max_epochs = 2;
  plan.accumulate = 2;
  driver d{plan, {}};
  std::vector<fit_machine> past{d.machine};
  std::unordered_set<std::uint64_t> digests{d.machine.digest()};
  std::unordered_set<std::string> texts{text(d.machine)};
  d.begin();
  do {
    auto copy = d.machine;
    CHECK(copy == d.machine);
    CHECK(copy.digest() == d.machine.digest());
    CHECK_FALSE(copy == past.back());
    CHECK(digests.insert(copy.digest()).second);
    texts.insert(text(copy));
    const auto before = d.machine.digest();
    copy.on(propose_stop{});
    CHECK_FALSE(copy == d.machine);
    CHECK(copy.digest() != before);
    CHECK(d.machine.digest() == before);  // a copy shares no mutable state
    past.push_back(d.machine);
  } while (d.answer());
  CHECK(texts.size() > 20);
  past.front() = past.back();
  CHECK(past.front() == d.machine);
  CHECK_FALSE(fit_machine{plan} == fit_machine{fit_plan{}});
  CHECK(fit_machine{plan}.digest() != fit_machine{fit_plan{}}.digest());
  CHECK(fit_machine{plan}.digest() == 0x6c3ff3266043fb52);  // the same digest on every machine
}

TEST_CASE("machine states and actions print readable text", "[fit]") {
  driver d{{}, {}};
  CHECK(text(d.machine) == "idle epoch 0 batch 0 steps 0 next 0");
  d.begin();
  for (int i = 0; i < 5; ++i) d.answer();
  CHECK(text(d.machine) == "window epoch 0 batch 1 steps 1 next 1 in flight 14 of 14");
  d.give(propose_stop{});
  d.drain();
  CHECK(text(d.machine) == "window epoch 0 batch 2 steps 2 next 2 holding voted 2");
  d.give(stop_after(3, stop_reason::terminate));
  CHECK(text(d.machine) ==
        "window epoch 0 batch 2 steps 2 next 2 in flight 14 of 14 voted 2 stop at 3 (terminate)");
  const auto print = [](const fit_action& a) {
    std::ostringstream out;
    troupe::operator<<(out, a);
    return out.str();
  };
  CHECK(print(fit_actions::vote{4}) == "vote 4");
  CHECK(print(fit_actions::step_finished{4}) == "step_finished 4");
  CHECK(print(fit_actions::run{{hooks::connect{}}}) == "run connect(start)");
  CHECK(print(fit_actions::metrics_known{{stage::train, 0, 4}, {{"a", 0.5}}}) ==
        "metrics_known at step 4 a 0.5");
  CHECK(print(fit_actions::finished{stop_reason::caller, stands(0, 0, 4)}) ==
        "finished caller after 4 steps");
}

TEST_CASE("the machine reports its position and its number of batches", "[fit]") {
  fit_plan plan;
  plan.accumulate = 2;
  plan.run_batches = 2;
  driver d{plan, {.train = 3, .val = {2, 3}}};
  d.begin();
  CHECK(d.machine.at() == position{});
  d.answer();
  d.answer();
  CHECK(d.machine.at() == position{stage::sanity, 0, 0});
  CHECK(d.machine.batches() == 4);
  d.answer();
  CHECK(d.machine.at() == position{stage::sanity, 0, 0, 1});
  d.answer();
  d.answer();
  CHECK(d.machine.at() == position{stage::train, 0, 0, 1});
  CHECK(d.machine.batches() == 3);
  d.answer();
  d.answer();
  CHECK(d.machine.at() == position{stage::validate, 0, 2});
  CHECK(d.machine.batches() == 5);
  d.answer();
  d.answer();
  CHECK(d.machine.at() == position{stage::validate, 0, 2, 3});
  d.drain();
  CHECK(d.machine.finished());
  CHECK(d.machine.batches() == 3);
}

TEST_CASE("events that are impossible in the current state are internal errors", "[fit]") {
  const auto answer = [](driver& d, std::uint32_t handled, run_verdict word) {
    fit_events::ran ran{handled, {}};
    ran.outcome.verdict = word;
    d.give(ran);
  };
  driver d{{}, {}};
  CHECK_THROWS_AS(answer(d, 0, run_verdict::proceed), internal_error);
  const auto fresh = [](int runs) {
    driver one{{}, {}};
    one.begin();
    for (int i = 0; i < runs; ++i) one.answer();
    return one;
  };
  auto begun = fresh(0);
  CHECK_THROWS_AS(begun.begin(), internal_error);
  CHECK_THROWS_AS(answer(begun = fresh(0), 5, run_verdict::proceed), internal_error);
  CHECK_THROWS_AS(answer(begun = fresh(0), 99, run_verdict::proceed), internal_error);
  CHECK_THROWS_AS(answer(begun = fresh(0), 5, run_verdict::failed), internal_error);
  CHECK_THROWS_AS(answer(begun = fresh(0), 5, run_verdict::skip_epoch), internal_error);
  CHECK_THROWS_AS(answer(begun = fresh(4), 4, run_verdict::skip_epoch), internal_error);
  auto stopped = fresh(4);  // inside step 0
  stopped.give(propose_stop{});
  CHECK(stopped.votes == std::vector<std::int64_t>{1});
  auto other = stopped;
  CHECK_THROWS_AS(other.give(stop_after(0)), internal_error);  // below the vote
  stopped.give(stop_after(2));
  CHECK_THROWS_AS(stopped.give(stop_after(3)), internal_error);  // a different step
  auto unasked = fresh(4);
  CHECK_THROWS_AS(unasked.give(stop_after(0)), internal_error);  // inside step 0
  unasked = fresh(4);
  unasked.give(stop_after(1, stop_reason::caller));  // without a proposal this is allowed
  unasked.drain();
  CHECK(unasked.end->loop.steps == 1);
}

TEST_CASE("a finished machine still votes for its last step", "[fit]") {
  auto d = run_through({}, {});
  d.give(propose_stop{});
  CHECK(d.votes == std::vector<std::int64_t>{9});
  d.give(stop_after(9));
  CHECK_FALSE(d.run);
  CHECK(d.end->why == stop_reason::none);
}

TEST_CASE("a repeated vote names the same step even if the agreed step is later", "[fit]") {
  driver d{{}, {}};
  d.begin();
  for (int i = 0; i < 4; ++i) d.answer();  // inside step 0
  d.give(propose_stop{});
  d.give(stop_after(3, stop_reason::caller));
  d.answer();
  d.answer();
  d.give(propose_stop{});
  CHECK(d.votes == std::vector<std::int64_t>{1, 1});
  d.drain();
  CHECK(d.end->loop.steps == 3);
}

TEST_CASE("contradicting facts from the loader or learner are internal errors", "[fit]") {
  const auto late = [](const hook& h, hook_outcome& out) {
    if (name(h) == "on_fit_start") out.loaders.push_back({stage::validate, 5, 1, 1});
  };
  CHECK_THROWS_AS(run_through({}, {}, late), internal_error);
  fit_plan plan;
  plan.resume = "here";
  CHECK_THROWS_AS(run_through(plan, {}), internal_error);  // the learner restored nothing
}

TEST_CASE("settings that contradict the data or the checkpoint are user errors", "[fit]") {
  fit_plan plan;
  plan.val_check_interval = std::int64_t{4};
  CHECK(contains(complaint([&] { run_through(plan, {.train = 3}); }),
                 "val_check_interval is 4 batches, but an epoch has 3"));
  // without validation data the interval is not checked
  CHECK(run_through(plan, {.train = 3, .val = {}}).end);
  plan = {};
  plan.resume = "runs/a/latest";
  const auto resumed = [&] {
    facts known;
    known.restored = stands(3, 0, 9);
    return complaint([&] { run_through(plan, known); });
  };
  plan.max_epochs = 2;
  CHECK(contains(resumed(), "runs/a/latest has finished 3 epochs, but max_epochs is 2"));
  plan.max_epochs = 3, plan.max_steps = 8;
  CHECK(contains(resumed(), "runs/a/latest has finished 9 steps, but max_steps is 8"));
  plan.max_steps = 9;
  CHECK_FALSE(contains(resumed(), "max_steps"));
}

TEST_CASE("metrics of on_train_end have the position of the last step", "[fit]") {
  const auto logs = [](const hook& h, hook_outcome& out) {
    if (h.is<hooks::on_train_end>()) out.logged["train/loss"] = 1;
  };
  fit_plan plan;
  plan.max_steps = 4;
  const auto in_epoch = run_through(plan, {.train = 3}, logs).known.back().at;
  CHECK(std::pair{in_epoch.epoch, in_epoch.step} == std::pair<std::int64_t, std::int64_t>{1, 4});
  plan.max_steps = 6;  // the last step ends an epoch
  const auto at_end = run_through(plan, {.train = 3}, logs).known.back().at;
  CHECK(std::pair{at_end.epoch, at_end.step} == std::pair<std::int64_t, std::int64_t>{1, 6});
}

TEST_CASE("validations within a step have different positions", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.accumulate = 3;
  plan.val_check_interval = std::int64_t{1};
  std::vector<std::int64_t> batches;
  for (const auto& one : run_through(plan, {.train = 3}).known) batches.push_back(one.at.batch);
  CHECK(batches == std::vector<std::int64_t>{1, 2, 3});
}

TEST_CASE("early stopping ends the run after the step of its check", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 9;
  plan.stop_early = {{"val/accuracy", 0, 2, true}, {"val/loss", 0, 1, false}};
  facts known;
  known.validation = {{"val/accuracy", 0.5}, {"val/loss", 1.0}};
  auto d = run_through(plan, known);
  CHECK(d.end->why == stop_reason::early_stopping);
  // best in the first epoch, one check without improvement in the second
  CHECK(d.end->loop.epoch == 2);
  CHECK(d.end->loop.early_stopping[0] == early_stopping_state{0.5, true, 1, "val/accuracy", true});
  CHECK(d.end->loop.early_stopping[1] == early_stopping_state{1.0, true, 1, "val/loss"});
  CHECK(count(d, "on_train_end") == 1);
  CHECK(d.hooks.back().get_if<hooks::on_fit_end>()->why == stop_reason::early_stopping);
  CHECK(d.snapshots.size() == 2);

  plan.accumulate = 3;
  plan.val_check_interval = std::int64_t{1};  // the second check falls into the accumulation window
  d = run_through(plan, known);
  CHECK(d.end->loop.steps == 1);
  CHECK(d.end->loop.epoch == 1);
  CHECK(d.end->why == stop_reason::early_stopping);

  plan.stop_early = {{"val/f1", 0, 2, false}};
  CHECK(contains(complaint([&] { run_through(plan, known); }), "val/accuracy, val/loss"));
}

TEST_CASE("a resumed run restores the state of early stopping", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 9;
  plan.resume = "here";
  plan.stop_early = {{"val/loss", 0, 3, false}};
  facts known;
  known.restored = stands(4, 0, 12);
  known.restored->early_stopping = {{0.25, true, 2}};
  const auto d = run_through(plan, known);
  CHECK(d.end->loop.epoch == 5);
  CHECK(d.end->loop.steps == 15);
  CHECK(d.end->why == stop_reason::early_stopping);
}

TEST_CASE("metrics are reported with the number of completed steps", "[fit]") {
  for (const bool fine : {false, true}) {
    fit_plan plan;
    plan.one_hook_per_run = fine;
    plan.max_epochs = 1;
    plan.accumulate = 2;
    const auto d =
        run_through(plan, {.train = 3, .val = {1}}, [](const hook& h, hook_outcome& out) {
          if (name(h) == "training_step") out.logged["train/loss"] = double(where(h).batch);
        });
    std::vector<std::pair<std::int64_t, double>> train;
    for (const auto& one : d.known)
      if (one.at.stage == stage::train) train.push_back({one.at.step, one.logged.at("train/loss")});
    CHECK(train.back() == std::pair<std::int64_t, double>{2, 2.0});
    CHECK(train[train.size() - 2] == std::pair<std::int64_t, double>{1, 1.0});
    CHECK(d.known.back().at == position{stage::validate, 0, 2, 3});
    CHECK(d.end->loop.last == metrics{{"train/loss", 2.0}, {"val/loss", 1.0}});
  }
}

TEST_CASE("with several optimizers each batch runs their steps one after another", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.accumulate = 2;
  facts known;
  known.train = 2;
  known.optimizers.optimizers = 2;
  const auto d = run_through(plan, known);
  CHECK(d.end->loop.steps == 1);
  std::vector<std::string> order;
  for (const auto& h : d.hooks)
    if (name(h) == "optimizer_step" || name(h) == "backward" || name(h) == "optimizer_zero_grad")
      order.push_back(std::string{name(h)} + " " + std::to_string(where(h).optimizer) + " batch " +
                      std::to_string(where(h).batch));
  CHECK(order == std::vector<std::string>{"optimizer_zero_grad 0 batch 0", "backward 0 batch 0",
                                          "optimizer_zero_grad 1 batch 0", "backward 1 batch 0",
                                          "optimizer_step 0 batch 1", "backward 0 batch 1",
                                          "optimizer_step 1 batch 1", "backward 1 batch 1"});
}

TEST_CASE("a resumed fit loads weights in setup and everything else after pre_dispatch", "[fit]") {
  fit_plan plan;
  plan.resume = "here";
  plan.max_epochs = 1;
  facts known;
  known.restored = stands(0, 2, 2);
  const auto d = run_through(plan, known);
  const auto all = names(d.hooks);
  CHECK(contains(all,
                 "configure_model load_checkpoint on_load_checkpoint model_to_device "
                 "setup_optimizers setup_precision process_dataloader"));
  CHECK(contains(all,
                 "on_fit_start pre_dispatch load_checkpoint dispatch barrier "
                 "on_train_start batch_to_device"));
  CHECK(count(d, "on_sanity_check_start") == 0);
  CHECK(count(d, "on_train_epoch_start") == 0);
  CHECK(count(d, "training_step") == 1);
  CHECK(d.end->loop.steps == 3);
}

TEST_CASE("resuming a finished fit only sets up and restores the weights", "[fit]") {
  fit_plan plan;
  plan.resume = "here";
  facts known;
  known.restored = stands(3, 0, 9);
  const auto d = run_through(plan, known);
  CHECK(d.end->loop == *known.restored);
  CHECK(count(d, "on_train_start") == 0);
  // the snapshot is for the caller; the checkpoint exists already
  REQUIRE(d.snapshots.size() == 1);
  CHECK(d.snapshots[0] == *known.restored);
  CHECK(count(d, "on_save_checkpoint") == 1);
  plan.checkpoint.enabled = false;
  CHECK(run_through(plan, known).snapshots.empty());
}

TEST_CASE("resuming past the end of a shortened epoch ends that epoch", "[fit]") {
  fit_plan plan;
  plan.resume = "here";
  plan.max_epochs = 2;
  facts known;
  known.train = 3;
  known.restored = stands(0, 7, 7);
  const auto d = run_through(plan, known);
  CHECK(d.end->loop.steps == 10);
  CHECK(count(d, "on_train_epoch_end") == 2);
  CHECK(count(d, "on_train_epoch_start") == 1);
}

TEST_CASE("max_steps 0 sets up and writes the initial checkpoint and ends", "[fit]") {
  fit_plan plan;
  plan.max_steps = 0;
  const auto d = run_through(plan, {});
  CHECK(contains(names(d.hooks),
                 "dispatch barrier optimizer_state on_save_checkpoint "
                 "save_checkpoint post_dispatch on_fit_end"));
  CHECK(d.end->why == stop_reason::none);
  CHECK(d.snapshots == std::vector<loop_state>{loop_state{}});
}

TEST_CASE("fast_dev_run does a little of each stage and returns its last weights", "[fit]") {
  trainer_options options;
  options.fast_dev_run = 2;
  options.max_epochs = 7;
  options.stop_early = {{"nothing of that name", 0, 1, false}};
  options.val_check_interval = std::int64_t{100};
  const auto d = run_through(make_plan(options, stage::train), {.train = 9, .val = {9, 9}});
  CHECK(d.end->loop.steps == 2);
  CHECK(d.end->loop.epoch == 1);
  CHECK(count(d, "validation_step") == 4);
  CHECK(count(d, "save_checkpoint") == 1);
  CHECK(d.snapshots == std::vector{d.end->loop});
  CHECK(count(d, "on_sanity_check_start") == 0);
}

TEST_CASE("a fit without an epoch limit ends at max_steps", "[fit]") {
  fit_plan plan;
  plan.max_epochs = -1;
  plan.max_steps = 50;
  CHECK(run_through(plan, {.train = 3}).end->loop.epoch == 16);
}

TEST_CASE("validate and test and predict run their hooks over their loaders", "[fit]") {
  const auto run = [](stage purpose) {
    fit_plan plan;
    plan.purpose = purpose;
    plan.test_batches = std::int64_t{1};
    plan.resume = "best";
    facts known;
    known.val = {1, 1};
    known.test = {2, 0};
    known.restored = stands(2, 0, 6);
    return run_through(plan, known);
  };
  const std::string set_up =
      "connect setup_environment prepare_data barrier setup barrier model_sharded_context "
      "configure_model load_checkpoint on_load_checkpoint model_to_device setup_precision "
      "process_dataloader process_dataloader pre_dispatch dispatch barrier ";
  const auto validated = run(stage::validate);
  const std::string val_batch =
      "batch_to_device on_validation_batch_start validation_step validation_step_end "
      "on_validation_batch_end ";
  CHECK(names(validated.hooks) ==
        set_up + "on_validation_model_eval on_validation_start on_validation_epoch_start " +
            val_batch + val_batch +
            "on_validation_epoch_end on_validation_end on_validation_model_train post_dispatch");
  CHECK(validated.end->why == stop_reason::none);
  CHECK(validated.known.at(0).at == position{stage::validate, 2, 6});
  const auto tested = run(stage::test);
  CHECK(names(tested.hooks) ==
        set_up +
            "on_test_model_eval on_test_start on_test_epoch_start batch_to_device "
            "on_test_batch_start test_step test_step_end on_test_batch_end on_test_epoch_end "
            "on_test_end on_test_model_train post_dispatch");
  const auto predicted = run(stage::predict);
  CHECK(contains(names(predicted.hooks),
                 "on_predict_model_eval on_predict_start on_predict_epoch_start batch_to_device "
                 "on_predict_batch_start predict_step on_predict_batch_end batch_to_device "
                 "on_predict_batch_start predict_step on_predict_batch_end on_predict_epoch_end "
                 "on_predict_end on_predict_model_train post_dispatch"));
  CHECK(where(predicted.hooks.at(20)) == position{stage::predict, 2, 6, 0});
}

TEST_CASE("an evaluation without batches runs no evaluation hooks", "[fit]") {
  fit_plan plan;
  plan.purpose = stage::test;
  CHECK(contains(names(run_through(plan, {.test = {}}).hooks), "barrier post_dispatch"));
  plan.test_batches = 0.0;
  CHECK(contains(names(run_through(plan, {.test = {4}}).hooks), "barrier post_dispatch"));
}

TEST_CASE("a stop ends an evaluation after the agreed batch", "[fit]") {
  fit_plan plan;
  plan.purpose = stage::test;
  plan.run_batches = 2;
  driver d{plan, {.test = {3, 4}}};
  d.begin();
  d.answer();
  d.answer();
  d.give(propose_stop{{}, stop_reason::interrupt});
  CHECK(d.votes == std::vector<std::int64_t>{2});
  d.drain();
  CHECK(d.machine.holding());
  d.give(stop_after(4, stop_reason::interrupt));
  d.drain();
  CHECK(count(d, "test_step") == 4);
  CHECK(count(d, "on_test_end") == 1);
  CHECK(d.end->why == stop_reason::interrupt);

  driver early{plan, {.test = {3}}};
  early.begin();
  early.give(propose_stop{});
  early.give(stop_after(0, stop_reason::caller));
  early.drain();
  CHECK(count(early, "on_test_start") == 0);
  CHECK(early.end->why == stop_reason::caller);

  const auto stopped = run_through(plan, {.test = {3, 4}}, [](const hook& h, hook_outcome& out) {
    if (name(h) == "test_step" && where(h).dataloader == 1) out.stop = true;
  });
  CHECK(count(stopped, "test_step") == 4);
  CHECK(stopped.end->why == stop_reason::hook);
}

TEST_CASE("a call runs only set-up and dispatch and post_dispatch", "[fit]") {
  fit_plan plan;
  plan.purpose = stage::call;
  driver d{plan, {}};
  d.begin();
  d.give(propose_stop{});
  CHECK(d.votes == std::vector<std::int64_t>{0});
  d.drain();
  CHECK(names(d.hooks) == "connect setup_environment pre_dispatch dispatch post_dispatch");
  CHECK(where(d.hooks[3]).stage == stage::call);
  CHECK(d.end->why == stop_reason::none);
}

TEST_CASE("manual optimization: a batch is a step, without hooks of optimizers", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.sanity_batches = 0;
  facts known{.train = 2, .val = {}};
  known.optimizers.manual = true;
  known.optimizers.optimizers = 2;
  const auto d = run_through(plan, known);
  CHECK(count(d, "training_step") == 2);
  CHECK(count(d, "training_step_end") == 2);
  for (const auto* none : {"optimizer_step", "backward", "optimizer_zero_grad"})
    CHECK(count(d, none) == 0);
  CHECK(d.end->loop.steps == 2);
  CHECK(count(d, "optimizer_state") == 2);  // of the checkpoint
}

TEST_CASE("a clock's validation and checkpoint come once, at the next step boundary", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.accumulate = 2;
  plan.sanity_batches = 0;
  plan.val_by_time = true;
  plan.checkpoint.every_epoch = false;
  const auto d = run_through(plan, {.train = 6}, [](const hook& h, hook_outcome& outcome) {
    const auto* end = h.get_if<hooks::on_train_batch_end>();
    outcome.validation_due = outcome.save_due = end && end->at.batch == 2;
  });
  std::string order;
  for (const auto& one : d.hooks) {
    if (name(one) == "on_train_batch_end") order += 'b';
    if (name(one) == "on_validation_end") order += 'v';
    if (name(one) == "save_checkpoint") order += 's';
  }
  CHECK(order == "bbbbvsbbs");
}

TEST_CASE("a schedule of accumulation changes the steps of an epoch, from its epochs on", "[fit]") {
  fit_plan plan;
  plan.max_epochs = 5;
  plan.sanity_batches = 0;
  plan.accumulate_schedule = {{1, 4}, {3, 2}};
  const auto d = run_through(plan, {.train = 6});
  std::map<std::int64_t, std::string> windows;
  for (const auto& one : d.hooks)
    if (const auto* back = one.get_if<hooks::backward>())
      windows[back->at.epoch] += back->synchronize() ? "|" : "-";
  CHECK(windows == std::map<std::int64_t, std::string>{
                       {0, "||||||"}, {1, "---|-|"}, {2, "---|-|"}, {3, "-|-|-|"}, {4, "-|-|-|"}});
  CHECK(d.end->loop.steps == 6 + 2 + 2 + 3 + 3);
}
