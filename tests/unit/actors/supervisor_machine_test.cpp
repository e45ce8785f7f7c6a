// Goal: what a failed job says it has committed is what all of its ranks hold.
#include "actors/supervisor_machine.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

struct supervised {
  supervisor_machine machine{job_id{1}, 2, derive({})};
  std::vector<supervision::action> last;

  template <class Event>
  void on(Event e) {
    last = machine.on(e);
  }
  fence of(std::int32_t rank, std::int64_t step) const {
    fence at;
    at.job = job_id{1};
    at.generation = machine.generation();
    at.incarnation = incarnation_id{static_cast<std::uint64_t>(20 - rank)};
    at.step = step_id{step};
    return at;
  }
  void form() {
    on(supervision::begin{{incarnation_id{20}, incarnation_id{19}}});
    for (std::int32_t r : {0, 1}) on(prepared{of(r, 0)});
  }
  const supervision::complete* completed() const {
    return last.empty() ? nullptr : std::get_if<supervision::complete>(&last.back());
  }
};

}  // namespace

TEST_CASE("a step is committed when every rank holds it, in whatever order", "[supervisor]") {
  supervised s;
  s.form();
  s.on(step_done{s.of(0, 1)});
  s.on(step_done{s.of(0, 2)});
  s.on(step_done{s.of(0, 2)});
  CHECK(s.machine.committed() == 0);
  s.on(step_done{s.of(1, 1)});
  CHECK(s.machine.committed() == 1);
  s.on(step_done{s.of(1, 2)});
  CHECK(s.machine.committed() == 2);
  s.on(step_done{s.of(1, 3)});
  CHECK(s.machine.committed() == 2);
  s.on(step_done{s.of(0, 3)});
  CHECK(s.machine.committed() == 3);
}

TEST_CASE("a failed job does not count a step that only a finished rank holds", "[supervisor]") {
  supervised s;
  s.form();
  for (std::int64_t step = 1; step <= 4; ++step)
    for (std::int32_t r : {0, 1}) s.on(step_done{s.of(r, step)});
  loop_state loop;
  loop.steps = 5;
  loop.samples = 50;
  s.on(step_done{s.of(0, 5)});
  s.on(supervision::finished{s.of(0, 5), loop});
  failure bad;
  bad.type = "std::bad_alloc";
  bad.rank = 1;
  s.on(supervision::failed{s.of(1, 4), bad});
  for (std::int32_t r : {0, 1}) s.on(closed_generation{s.of(r, 4)});
  for (std::int32_t r : {0, 1}) s.on(supervision::torn{s.of(r, 4), {}});
  for (std::int32_t r : {0, 1}) s.on(supervision::rank_down{r, ""});
  s.on(supervision::checkpointer_done{});
  s.on(supervision::observers_done{});
  REQUIRE(s.completed());
  CHECK(s.completed()->status == job_outcome::ending::failed);
  CHECK(s.completed()->loop.steps == 4);
  CHECK(s.completed()->loop.samples == 0);
}
