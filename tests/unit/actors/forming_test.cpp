// Goal: forming a generation may take as long as every missing rank makes progress. Each hook has
// its own limit, and all of them together have `form_most`.
#include "actors/supervisor_machine.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

struct forming {
  forming() : machine(job_id{1}, 2, limits) {
    last = machine.on(supervision::begin{{incarnation_id{1}, incarnation_id{2}}});
  }
  fence of(std::uint64_t incarnation) const {
    fence at;
    at.job = job_id{1};
    at.generation = machine.generation();
    at.incarnation = incarnation_id{incarnation};
    return at;
  }
  void starts(std::uint64_t incarnation) { machine.on(rank_busy{of(incarnation), "starting"}); }
  // Lets the deadline that was armed last pass. Returns the delay of the new one, or zero.
  std::chrono::nanoseconds pass() {
    for (auto a = last.rbegin(); a != last.rend(); ++a)
      if (const auto* x = std::get_if<supervision::arm>(&*a)) {
        last = machine.on(deadline_passed{x->id});
        break;
      }
    for (const auto& a : last)
      if (const auto* x = std::get_if<supervision::arm>(&a)) return x->delay;
    return {};
  }
  std::string failure_text() const {
    for (const auto& a : last)
      if (const auto* x = std::get_if<supervision::announce>(&a))
        if (x->what.event == lifecycle_kind::rank_failed) return x->what.details.at("what");
    return {};
  }

  const deadlines limits = derive({});
  supervisor_machine machine;
  std::vector<supervision::action> last;
};

}  // namespace

TEST_CASE("no rank makes progress: the first forming deadline ends the job", "[supervisor]") {
  forming f;
  f.pass();
  CHECK(f.machine.phase() == supervision::phase::closing);
  CHECK_THAT(f.failure_text(),
             Catch::Contains("did not form in 10000 ms: no answer from rank 0, 1"));
}

TEST_CASE("each sign of progress extends the wait by one deadline", "[supervisor]") {
  forming f;
  for (int i = 0; i < 3; ++i) {
    f.starts(1);
    f.starts(2);
    CHECK(f.pass() == f.limits.form);
    REQUIRE(f.machine.phase() == supervision::phase::forming);
  }
  f.pass();
  CHECK(f.machine.phase() == supervision::phase::closing);
  CHECK_THAT(f.failure_text(), Catch::Contains("did not form in 40000 ms"));
}

TEST_CASE("a rank is silent while another one waits for it: it is named at the first deadline",
          "[supervisor]") {
  forming f;
  f.starts(1);
  f.pass();
  CHECK(f.machine.phase() == supervision::phase::closing);
  CHECK_THAT(f.failure_text(), Catch::EndsWith("did not form in 10000 ms: no answer from rank 1"));
}

TEST_CASE("a rank that falls silent after a first sign is named at the second deadline",
          "[supervisor]") {
  forming f;
  f.starts(1);
  f.starts(2);
  REQUIRE(f.pass() == f.limits.form);
  f.starts(1);
  f.pass();
  CHECK_THAT(f.failure_text(), Catch::EndsWith("did not form in 20000 ms: no answer from rank 1"));
}

TEST_CASE("progress of a rank that is already prepared does not extend the wait", "[supervisor]") {
  forming f;
  f.machine.on(prepared{f.of(1)});
  f.starts(1);
  f.pass();
  CHECK(f.machine.phase() == supervision::phase::closing);
  CHECK_THAT(f.failure_text(), Catch::Contains("no answer from rank 1"));
}

TEST_CASE("hooks of a new rank take longer than one hook may: it is waited for", "[supervisor]") {
  forming f;
  f.machine.on(prepared{f.of(1)});
  for (auto waited = f.limits.form; waited <= 2 * f.limits.hook_limit; waited += f.limits.form) {
    f.starts(2);
    f.pass();
    REQUIRE(f.machine.phase() == supervision::phase::forming);
  }
}

TEST_CASE("one hook of a new rank is too long: the rank is named with the hook", "[supervisor]") {
  forming f;
  f.machine.on(prepared{f.of(1)});
  f.starts(2);
  REQUIRE(f.pass() == f.limits.form);
  f.machine.on(rank_busy{f.of(2), "setup for 300.0 s", true});
  f.pass();
  CHECK(f.machine.phase() == supervision::phase::closing);
  CHECK_THAT(f.failure_text(), Catch::EndsWith("no answer from rank 1 (setup for 300.0 s)"));
}

TEST_CASE("a rank that reports progress forever is stopped at the limit of all hooks together",
          "[supervisor]") {
  forming f;
  f.machine.on(prepared{f.of(1)});
  std::chrono::nanoseconds waited = f.limits.form;
  while (f.machine.phase() == supervision::phase::forming && waited < 2 * f.limits.form_most) {
    f.starts(2);
    f.pass();
    if (f.machine.phase() == supervision::phase::forming) waited += f.limits.form;
  }
  CHECK(f.machine.phase() == supervision::phase::closing);
  CHECK(waited == f.limits.form_most);
}
