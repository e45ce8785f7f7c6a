// Goal: each committed step has one row of metrics, also when rank 0 is lost while the supervisor's
// process has not read the rows that it sent. Each step has one value in the queue.
#include "apps/testing/case.hpp"
#include "backends/telemetry/metrics_once.hpp"

#include "tests/simulated/restarts.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

class row_keeper final : public observer {
public:
  explicit row_keeper(std::vector<std::int64_t>& into) : into_(into) {}
  void on(const observation& what) override {
    if (const auto* row = std::get_if<seen::metrics>(&what)) into_.push_back(row->at.step);
  }

private:
  std::vector<std::int64_t>& into_;
};

std::vector<std::int64_t> all_steps() {
  std::vector<std::int64_t> all;
  for (std::int64_t s = 1; s <= restarting_job::steps; ++s) all.push_back(s);
  return all;
}

}  // namespace

TEST_CASE("rank 0 is lost while its link is not read: each step has one row",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    INFO("seed " << seed);
    std::vector<std::int64_t> rows;
    restarting_job job{{.seed = seed, .observer = [&rows] {
                          return std::make_unique<metrics_once>(std::make_unique<row_keeper>(rows));
                        }}};
    REQUIRE(job.script.run_until([&] { return job.script.steps_of(0) == 2; }));
    const auto link = job.script.sim_job().life_of(0)->process->stream();
    // What is sent from here on stays in the process of rank 0.
    link->read_slowly(0, {.each = std::chrono::hours{1}, .buffer = 0});
    REQUIRE(job.until(1, "on_train_batch_start", 8));
    job.script.crash(0);
    link->read_as_before(0);
    job.ends_well(2);
    CHECK(rows == all_steps());
  }
}

TEST_CASE("all ranks die: the job goes on from its checkpoint, and each step has one queued value",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    INFO("seed " << seed);
    const bool saves = seed % 2 == 0;
    std::vector<std::int64_t> rows;
    restarting_job job{{.seed = seed, .checkpoint_every = saves ? 3 : 100, .observer = [&rows] {
                          return std::make_unique<row_keeper>(rows);
                        }}};
    REQUIRE(job.until(0, "backward", 8));
    if (saves) REQUIRE(job.announced(lifecycle_kind::checkpoint_written, 1));
    for (std::int32_t r = 0; r < restarting_job::ranks; ++r) job.script.crash(r);
    std::vector<std::int64_t> queued;
    for (const auto& one : job.ends_well(2).queue) queued.push_back(*one.get_if<std::int64_t>());
    CHECK(queued == all_steps());
  }
}

TEST_CASE("readers of links are slow and processes die: each committed step has one row",
          "[simulated][restart][campaign]") {
  run_plan plan;
  plan.faults.may = fault_set::parse("slow_reader, crash_rank, crash_host, throw_in_hook");
  plan.faults.swarm = false;
  plan.observer = test_observer::receives;
  const auto r = explore({.ranks = 4, .steps = 12, .max_restarts = 3}, plan, {.runs = 400});
  for (const auto& v : r.violating) UNSCOPED_INFO(to_text(case_of(v, r.variants.front())));
  CHECK(r.held(rows_oracle));
  CHECK(r.held(queue_oracle));
  CHECK(r.clean());
  CHECK(r.met("slow_reader"));
  CHECK(r.met("a rank shows rows that a lost rank may have taken along"));
}
