// Goal: while a job runs, the terminal shows failed checkpoints, values that are not finite and
// failed observers, each of them once, and that the run's folder was moved.
#include "apps/troupe/trouble_report.hpp"

#include <limits>
#include <system_error>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;

namespace {

struct reported_screen {
  std::string err;
  console screen{[](std::string_view) {}, [this](std::string_view text) { err += text; }, {}};
  trouble_report report{screen};

  // The text that was printed since the last call.
  std::string next() { return std::exchange(err, {}); }
};

seen::lifecycle checkpoint(lifecycle_kind event, std::int64_t step) {
  return {.event = event, .step = step, .details = {{"what", "the disk is full"}}};
}

// An observer that calls `act`, which may throw.
class thrower : public observer {
public:
  explicit thrower(std::function<void()> act) : act_(std::move(act)) {}
  void on(const observation&) override { act_(); }

private:
  std::function<void()> act_;
};

}  // namespace

TEST_CASE("several checkpoints in a row fail: the first failure is reported at once", "[trouble]") {
  reported_screen t;
  const auto watch = t.report.watch()();
  watch->on(checkpoint(lifecycle_kind::checkpoint_written, 1));
  CHECK(t.next().empty());
  watch->on(checkpoint(lifecycle_kind::checkpoint_failed, 2));
  CHECK(t.next() == "error: the checkpoint of step 2 was not written: the disk is full\n");
  watch->on(checkpoint(lifecycle_kind::checkpoint_failed, 3));
  CHECK(t.next().empty());
  watch->on(checkpoint(lifecycle_kind::checkpoint_written, 4));
  CHECK(t.next() == "checkpoints are written again: step 4\n");
  watch->on(checkpoint(lifecycle_kind::checkpoint_failed, 5));
  CHECK_THAT(t.next(), Catch::Contains("step 5"));
}

TEST_CASE("checkpoints that cannot be removed cause one warning: they were written", "[trouble]") {
  reported_screen t;
  const auto watch = t.report.watch()();
  auto stays = checkpoint(lifecycle_kind::checkpoint_failed, 2);
  failure why;
  why.hook = "remove_checkpoint";
  stays.cause = std::make_shared<const failure>(why);
  watch->on(stays);
  CHECK_THAT(t.next(), Catch::StartsWith("warning: a checkpoint that is no longer kept"));
  watch->on(stays);
  CHECK(t.next().empty());
  watch->on(checkpoint(lifecycle_kind::checkpoint_failed, 3));
  CHECK_THAT(t.next(), Catch::Contains("step 3 was not written"));
}

TEST_CASE("a misplaced run folder is shown once, after the next checkpoint", "[trouble]") {
  reported_screen t;
  std::string place;
  const auto watch = t.report.watch([&] { return place; })();
  watch->on(checkpoint(lifecycle_kind::checkpoint_written, 1));
  CHECK(t.next().empty());
  place = "it was moved";
  CHECK(t.next().empty());
  watch->on(checkpoint(lifecycle_kind::checkpoint_written, 2));
  CHECK(t.next() == "warning: it was moved\n");
  watch->on(checkpoint(lifecycle_kind::checkpoint_written, 3));
  CHECK(t.next().empty());
}

TEST_CASE("each generation after the first is shown at once, with its cause", "[trouble]") {
  reported_screen t;
  const auto watch = t.report.watch()();
  watch->on(seen::lifecycle{.event = lifecycle_kind::generation_forming, .generation = 1});
  CHECK(t.next().empty());
  const auto forms = [&](std::uint64_t generation, const char* cause) {
    watch->on(seen::lifecycle{.event = lifecycle_kind::generation_forming,
                              .generation = generation,
                              .details = {{"cause", cause}}});
  };
  forms(2, "failure");
  CHECK(t.next() == "generation 2: the job goes on after a failure\n");
  forms(3, "left");
  CHECK(t.next() == "generation 3: the job goes on after a process has left\n");
  forms(4, "scaled");
  CHECK(t.next() == "generation 4: the job goes on after a change of the number of ranks\n");
}

TEST_CASE("a metric that is not finite causes one warning", "[trouble]") {
  reported_screen t;
  const auto watch = t.report.watch()();
  watch->on(seen::metrics{{.step = 7}, {{"train/loss", 0.5}}});
  CHECK(t.next().empty());
  const auto none = std::numeric_limits<double>::quiet_NaN();
  watch->on(seen::metrics{{.step = 8}, {{"val/loss", none}}});
  CHECK_THAT(t.next(), Catch::StartsWith("warning: val/loss is nan at step 8"));
  watch->on(seen::metrics{{.step = 9}, {{"train/loss", none}, {non_finite_steps, 1}}});
  CHECK(t.next().empty());
}

TEST_CASE("an observer cannot write its file: it still receives later entries", "[trouble]") {
  reported_screen t;
  int calls = 0;
  const auto full = [&calls] {
    if (++calls < 3) throw std::system_error(ENOSPC, std::generic_category(), "cannot write f");
  };
  const auto around =
      t.report.around([&] { return std::make_unique<thrower>(full); }, "run/events.jsonl")();
  around->on(seen::progress{});
  CHECK_THAT(t.next(),
             Catch::StartsWith("error: cannot write f") && Catch::Contains("run/events.jsonl"));
  around->on(seen::progress{});
  around->on(seen::progress{});
  CHECK(calls == 3);
  CHECK(t.next().empty());
  around->finish(0);
  CHECK(t.next() == "error: run/events.jsonl lacks 2 entries\n");
}

TEST_CASE("an exception ends an observer: it is reported at once and only once", "[trouble]") {
  reported_screen t;
  const auto wrong = [] { throw std::length_error("too many columns"); };
  const auto around = t.report.around([&] { return std::make_unique<thrower>(wrong); }, "f")();
  failure late;
  late.what = "too many columns";
  CHECK_FALSE(t.report.reported(late));
  CHECK_THROWS_AS(around->on(seen::progress{}), std::length_error);
  CHECK(t.next() == "error: too many columns\n");
  CHECK(t.report.reported(late));
}
