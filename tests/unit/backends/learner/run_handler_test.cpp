// Goal: a learner may handle many hooks in one call of `pass`. This is not observable: each hook is
// handled once and in order, a failure names its hook, and a watcher of single hooks sees every
// one.
#include "backends/learner/run_handler.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

using names = std::vector<std::string>;

// Passes all hooks but optimizer_step and barriers. Throws in the hook `bad`.
class passer final : public learner {
public:
  void bind(std::shared_ptr<communicator>, generation_id) override {}
  void pass(std::span<const hook> hooks, std::uint32_t& handled) override {
    for (; handled < hooks.size() && !kept(hooks[handled]); ++handled)
      meet(hooks[handled], in_passing);
  }
  hook_outcome on(const hook& h, const closure& inner) override {
    meet(h, asked);
    for (int i = 0; inner && i < rounds; ++i) inner();
    hook_outcome out;
    if (h.is<hooks::barrier>() && waits-- > 0) out.verdict = run_verdict::waits;
    if (h.is<hooks::barrier>() && skips) out.verdict = run_verdict::skip_epoch;
    if (h.is<hooks::optimizer_step>()) out.samples = samples;
    if (name(h) == closes_at) word = attention::generation_closed;
    return out;
  }
  void keep_point() override {
    if (bad == "keep_point") throw std::runtime_error("bad");
    ++points;
  }

  std::string bad;
  int rounds = 1;
  int waits = 0;
  bool skips = false;
  std::int64_t samples = 0;
  std::string closes_at;  // the hook in which the generation is closed
  std::atomic<attention> word{attention::none};
  int points = 0;
  names in_passing, asked, all;

private:
  static bool kept(const hook& h) {
    return h.is<hooks::optimizer_step>() || h.is<hooks::barrier>();
  }
  void meet(const hook& h, names& where) {
    if (name(h) == bad) throw std::runtime_error("bad");
    where.emplace_back(name(h));
    all.emplace_back(name(h));
  }
};

hook_run one_step() {
  constexpr position at{stage::train, 1, 7, 7};
  hook_run run;
  run.hooks = {hook{hooks::on_train_batch_start{{at}}}, hook{hooks::batch_to_device{{at}}},
               hook{hooks::optimizer_step{at, 3}},      hook{hooks::training_step{{at}}},
               hook{hooks::barrier{at, "within"}},      hook{hooks::on_after_backward{{at}}},
               hook{hooks::on_train_batch_end{{at}}}};
  return run;
}

const names in_order{"on_train_batch_start", "batch_to_device", "optimizer_step",
                     "training_step",        "barrier",         "on_after_backward",
                     "on_train_batch_end"};

}  // namespace

TEST_CASE("passed hooks are handled once and in order", "[lane]") {
  passer who;
  run_handler handler{{}, {}};
  const auto answer = handler.handle(who, one_step());
  CHECK(answer.outcome.verdict == run_verdict::proceed);
  CHECK(answer.handled == in_order.size());
  CHECK(who.all == in_order);
  CHECK(who.asked == names{"optimizer_step", "barrier"});
}

TEST_CASE("a closure that runs twice passes its hooks twice", "[lane]") {
  passer who;
  who.rounds = 2;
  run_handler handler{{}, {}};
  CHECK(handler.handle(who, one_step()).handled == in_order.size());
  CHECK(who.in_passing == names{"on_train_batch_start", "batch_to_device", "training_step",
                                "on_after_backward", "training_step", "on_after_backward",
                                "on_train_batch_end"});
}

TEST_CASE("an exception in a passed hook is the failure of that hook", "[lane]") {
  struct failing {
    const char* hook;
    std::uint32_t handled;
  };
  const auto [bad, handled] =
      GENERATE(failing{"on_train_batch_start", 0}, failing{"batch_to_device", 1},
               failing{"optimizer_step", 2}, failing{"training_step", 2}, failing{"barrier", 2},
               failing{"on_after_backward", 2}, failing{"on_train_batch_end", 6});
  CAPTURE(bad);
  passer who;
  who.bad = bad;
  run_handler handler{{}, {}};
  const auto answer = handler.handle(who, one_step());
  REQUIRE(answer.outcome.verdict == run_verdict::failed);
  CHECK(answer.handled == handled);
  CHECK(answer.failed_with->record.hook == bad);
  CHECK(answer.failed_with->record.epoch == 1);
  CHECK(answer.failed_with->record.step == 7);
}

// A learner of a user's own that means something else than the contract says.
struct misusing final : learner {
  void bind(std::shared_ptr<communicator>, generation_id) override {}
  void pass(std::span<const hook> hooks, std::uint32_t& handled) override {
    if (passes_too_far) handled = static_cast<std::uint32_t>(hooks.size()) + 1;
  }
  hook_outcome on(const hook& h, const closure&) override {
    if (not_yet_in_hook && h.is<hooks::batch_to_device>()) throw not_yet{};
    hook_outcome out;
    if (h.is<hooks::batch_to_device>()) out.verdict = word;
    return out;
  }
  void keep_point() override {
    if (not_yet_in_point) throw not_yet{};
  }

  bool passes_too_far = false;
  bool not_yet_in_hook = false;
  bool not_yet_in_point = false;
  run_verdict word = run_verdict::proceed;
};

TEST_CASE("a learner that reports no loader of the stage: the failure names the stage", "[lane]") {
  const auto verdict_of = [](stage s, std::int32_t dataloader = 0) {
    misusing who;
    hook_run run;
    hooks::process_dataloader asked;
    asked.at.stage = s;
    asked.at.dataloader = dataloader;
    run.hooks.emplace_back(asked);
    auto answer = run_handler{{}, {}}.handle(who, run);
    if (answer.failed_with)
      CHECK_THAT(answer.failed_with->record.what,
                 Catch::Contains("no loader of the stage " + std::string{to_string(s)}));
    return answer.outcome.verdict;
  };
  CHECK(verdict_of(stage::train) == run_verdict::failed);
  CHECK(verdict_of(stage::predict) == run_verdict::failed);
  CHECK(verdict_of(stage::predict, 1) == run_verdict::proceed);  // the loader 0 reports all
  CHECK(verdict_of(stage::validate) == run_verdict::proceed);
}

TEST_CASE("a learner that breaks its contract in a lane that can wait: the failure says how",
          "[lane]") {
  const auto failure_of = [](misusing who) {
    auto run = one_step();
    run.keep_point = true;
    auto answer = run_handler{{}, {}}.handle(who, run);
    REQUIRE(answer.outcome.verdict == run_verdict::failed);
    CHECK(answer.failed_with->record.type == "troupe::user_error");
    return answer.failed_with->record;
  };
  for (const auto word : {run_verdict::attention, run_verdict::failed, run_verdict{77}}) {
    misusing who;
    who.word = word;
    CHECK_THAT(failure_of(who).what, Catch::Contains("a verdict that is not for single hooks"));
    CHECK(failure_of(who).hook == "batch_to_device");
  }
  misusing waits;
  waits.word = run_verdict::waits;
  CHECK_THAT(failure_of(waits).what, Catch::Contains("in a lane that can wait"));
  misusing throws;
  throws.not_yet_in_hook = true;
  CHECK(failure_of(throws).hook == "batch_to_device");
  misusing at_end;
  at_end.not_yet_in_point = true;
  CHECK_THAT(failure_of(at_end).what, Catch::Contains("in a lane that can wait"));
  misusing far;
  far.passes_too_far = true;
  CHECK_THAT(failure_of(far).what, Catch::Contains("learner::pass counts 8 handled hooks of 7"));
}

TEST_CASE("with a watcher of single hooks each hook is handled alone and reported", "[lane]") {
  passer who;
  names entered, current;
  run_handler::lane_services around;
  around.entered = [&](const hook& h) { entered.emplace_back(name(h)); };
  around.current = [&](const hook& h) { current.emplace_back(name(h)); };
  run_handler handler{{}, std::move(around)};
  CHECK(handler.handle(who, one_step()).handled == in_order.size());
  CHECK(who.in_passing.empty());
  CHECK(who.asked == in_order);
  CHECK(entered == in_order);
  // After each hook of the closure its optimizer_step is current again; after the step no hook is.
  CHECK(current == names{"on_train_batch_start", "batch_to_device", "optimizer_step",
                         "training_step", "optimizer_step", "barrier", "optimizer_step",
                         "on_after_backward", "optimizer_step", "on_train_batch_end"});
}

TEST_CASE("a run continues at the hook that waits and ends at skip_epoch or attention", "[lane]") {
  passer who;
  who.waits = 1;
  run_handler handler{{}, {}};
  hook_run run = one_step();
  // so that the barrier is not part of a closure
  run.hooks.erase(run.hooks.begin() + 2, run.hooks.begin() + 4);
  ran answer;
  CHECK_FALSE(handler.go_on(who, run, answer, run.hooks.size(), false));
  CHECK(answer.handled == 2);
  CHECK(handler.go_on(who, run, answer, run.hooks.size() - 1, true));
  CHECK(answer.handled == 4);
  CHECK(who.in_passing == names{"on_train_batch_start", "batch_to_device", "on_after_backward"});
  CHECK(handler.go_on(who, run, answer, run.hooks.size(), false));
  CHECK(answer.handled == 5);

  who.skips = true;
  const auto skipped = handler.handle(who, run);
  CHECK(skipped.outcome.verdict == run_verdict::skip_epoch);
  CHECK(skipped.handled == 3);

  std::atomic<attention> word{attention::generation_closed};
  run_handler interrupted{{}, {&word, nullptr, nullptr, nullptr}};
  const auto held = interrupted.handle(who, run);
  CHECK(held.outcome.verdict == run_verdict::attention);
  CHECK(held.handled == 0);
}

TEST_CASE("the point that ends a run is kept after its last hook", "[lane]") {
  passer who;
  run_handler handler{{}, {}};
  auto run = one_step();
  CHECK(handler.handle(who, run).outcome.verdict == run_verdict::proceed);
  CHECK(who.points == 0);

  run.keep_point = true;
  ran answer;
  CHECK(handler.go_on(who, run, answer, run.hooks.size() - 1, false));
  CHECK(who.points == 0);
  CHECK(handler.go_on(who, run, answer, run.hooks.size(), false));
  CHECK(who.points == 1);

  who.bad = "on_train_batch_end";
  CHECK(handler.handle(who, run).outcome.verdict == run_verdict::failed);
  CHECK(who.points == 1);

  who.bad = "keep_point";
  const auto failed = handler.handle(who, run);
  CHECK(failed.outcome.verdict == run_verdict::failed);
  CHECK(failed.handled == run.hooks.size());
  CHECK(failed.failed_with->record.hook == "on_train_batch_end");
}

TEST_CASE("attention does not stop a run after its step is applied", "[lane]") {
  passer who;
  run_handler handler{{}, {.word = &who.word}};
  auto run = one_step();
  run.keep_point = true;
  who.closes_at = "optimizer_step";
  const auto before = handler.handle(who, run);
  CHECK(before.outcome.verdict == run_verdict::attention);
  CHECK(before.handled == 6);
  CHECK(who.points == 0);

  who.word = attention::none;
  who.samples = 8;
  const auto after = handler.handle(who, run);
  CHECK(after.outcome.verdict == run_verdict::proceed);
  CHECK(after.handled == run.hooks.size());
  CHECK(who.points == 1);

  const hook scheduler{hooks::lr_scheduler_step{{}, hooks::lr_scheduler_step::interval::epoch}};
  hook_run later;
  later.hooks = {scheduler, hook{hooks::barrier{{}, "after"}}};
  who.word = attention::generation_closed;
  CHECK(handler.handle(who, later).handled == 1);
  later.hooks = {hook{hooks::rewind{}}};
  CHECK(handler.handle(who, later).handled == 1);
}

TEST_CASE("a lane without a learner refuses to rewind", "[lane]") {
  hook_run run = one_step();
  CHECK_FALSE(refusal_without_learner(run));
  CHECK(has_failed(true, run, ran{}));
  run.hooks = {hook{hooks::rewind{}}};
  CHECK(refusal_without_learner(run));
  CHECK_FALSE(has_failed(true, run, ran{}));
  ran failed;
  failed.outcome.verdict = run_verdict::failed;
  failed.failed_with.emplace(caught{});
  CHECK(has_failed(false, run, failed));
  run.hooks = {hooks::teardown{}};
  CHECK(has_failed(false, run, failed));
  failed.failed_with->record.follows = true;
  CHECK_FALSE(has_failed(false, run, failed));
  CHECK(has_failed(true, run, failed));
}
