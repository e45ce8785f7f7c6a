// Goal: an oracle is excused only by what happened: a storage fault excuses the checkpoints it
// affected, a cut only an existing link. Ranks are compared with each other
// whatever they train. Stale messages arrive and are refused.
#include <set>

#include "apps/testing/durability_tracker.hpp"
#include "apps/testing/explore.hpp"
#include "apps/testing/null_payload.hpp"
#include "troupe/testing.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using kind = storage_fault::kind;

const std::string folder = "run/checkpoints";
std::string final_path(int step) { return folder + "/step-" + std::to_string(step); }
std::string hidden_path(int step) { return folder + "/.step-" + std::to_string(step) + ".tmp"; }

struct followed {
  durability_tracker tracker;
  void on(const storage_op& op, kind what = kind::none) { tracker.meets(op, {what, 0, {}}); }
  // The operations of actors/checkpoint_machine.hpp; the fault is at the operation with that
  // number.
  void save(int step, int fails_at = -1, kind lie = kind::lost_sync) {
    const std::vector<storage_op> script{
        storage_ops::remove{hidden_path(step)},
        storage_ops::make_folder{hidden_path(step)},
        storage_ops::write{hidden_path(step) + "/state", {}},
        storage_ops::sync_folder{hidden_path(step)},
        storage_ops::rename{hidden_path(step), final_path(step)},
        storage_ops::sync_folder{folder},
        storage_ops::link{"step-" + std::to_string(step), folder + "/latest"},
        storage_ops::sync_folder{folder}};
    for (int i = 0; i < static_cast<int>(script.size()); ++i)
      on(script[static_cast<std::size_t>(i)], i == fails_at ? lie : kind::none);
    tracker.announced(step);
  }
  void retire(int step) {
    on(storage_ops::rename{final_path(step), hidden_path(step)});
    on(storage_ops::remove{hidden_path(step)});
  }
};

run_report report_of(const job_spec& what, const run_plan& plan, std::uint64_t seed) {
  auto reference = reference_of(what);
  return run_job(what, plan, choices::of_seed(seed), reference);
}

}  // namespace

TEST_CASE("a storage fault excuses the checkpoint it affected and no other",
          "[simulated][oracle]") {
  for (const int at : {1, 2, 3, 4, 5, 7}) {
    INFO("a lie in operation " << at);
    followed f;
    f.save(5);
    CHECK(f.tracker.newest_durable() == 5);
    f.save(10, at);
    CHECK(f.tracker.is_damaged(10));
    CHECK_FALSE(f.tracker.is_damaged(5));
    CHECK(f.tracker.newest_durable() == 5);
    f.save(15);
    CHECK(f.tracker.newest_durable() == 15);
    f.retire(5);
    f.retire(15);
    CHECK(f.tracker.newest_durable() == 0);
    f.save(10);  // again, this time without a fault
    CHECK(f.tracker.newest_durable() == 10);
  }
}

TEST_CASE("a storage fault without effect or with an error damages no checkpoint",
          "[simulated][oracle]") {
  followed f;
  f.save(5, 6, kind::lost_sync);  // a link is not synced by itself
  f.save(10, 3, kind::torn);      // nothing is written
  f.save(15, 2, kind::failed_sync);
  for (const int step : {5, 10, 15}) CHECK_FALSE(f.tracker.is_damaged(step));
  CHECK(f.tracker.newest_durable() == 15);
}

TEST_CASE("fault before the program has written anything: no checkpoint counts as durable",
          "[simulated][oracle]") {
  followed f;
  f.save(5);
  f.tracker.program_starts();
  f.on(storage_ops::sync_folder{folder}, kind::lost_sync);
  CHECK(f.tracker.newest_durable() == 0);
}

TEST_CASE("a damaged checkpoint is excused until a new checkpoint of its step replaces it",
          "[simulated][oracle]") {
  followed f;
  f.save(10, 2, kind::bit_flip);
  f.on(storage_ops::make_folder{hidden_path(10)});
  CHECK(f.tracker.is_damaged(10));
  f.on(storage_ops::rename{hidden_path(10), final_path(10)});
  CHECK_FALSE(f.tracker.is_damaged(10));
}

TEST_CASE("an earlier step is saved again: later checkpoints may be removed",
          "[simulated][oracle]") {
  followed f;
  for (const int step : {5, 10}) f.save(step);
  f.on(storage_ops::rename{hidden_path(7), final_path(7)});
  CHECK(f.tracker.newest_durable() == 5);
}

TEST_CASE("a cut of a rank without a link is not applied", "[simulated][oracle]") {
  for (const auto& [ranks_per_host, there] : {std::pair{0U, false}, {1U, true}}) {
    run_plan plan;
    plan.cluster.ranks_per_host = ranks_per_host;
    plan.faults.may = fault_set::parse("cut,one_way_cut");
    plan.faults.swarm = false;
    std::uint64_t cuts = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      const auto report = report_of({.ranks = 3}, plan, seed);
      CHECK(report.violations.empty());
      cuts += report.faults[static_cast<std::size_t>(fault::cut)] +
              report.faults[static_cast<std::size_t>(fault::one_way_cut)];
    }
    CHECK((cuts > 0) == there);
  }
}

namespace {

// A null payload whose rank 1 reports another digest after step 3.
class odd_null_payload final : public payload {
public:
  std::string_view name() const override { return "odd"; }
  std::shared_ptr<payload_job> of(const job_spec& what) override {
    return std::make_shared<job_of_them>(null_payload()->of(what));
  }

private:
  class job_of_them final : public payload_job {
  public:
    explicit job_of_them(std::shared_ptr<payload_job> null_payloads)
        : null_(std::move(null_payloads)) {}
    recipe_ptr recipe(payload_ground ground) const override {
      ground.stepped = [report_step = std::move(ground.stepped)](
                           const learner_context& who, std::int64_t steps, std::uint64_t digest) {
        report_step(who, steps, digest + (who.rank == 1 && steps == 3 ? 1 : 0));
      };
      return null_->recipe(std::move(ground));
    }

  private:
    const std::shared_ptr<payload_job> null_;
  };
};

}  // namespace

TEST_CASE("ranks that differ after a step are found without a reference", "[simulated][oracle]") {
  const job_spec what{.ranks = 3, .steps = 6};
  run_plan plan;
  plan.payload = std::make_shared<odd_null_payload>();
  const auto report = report_of(what, plan, 1);
  REQUIRE_FALSE(report.violations.empty());
  for (const auto& v : report.violations) {
    CHECK(v.oracle == "a step is the same on all ranks");
    CHECK(v.step == 3);
  }
}

TEST_CASE("stale messages of every kind are refused", "[simulated][oracle][campaign]") {
  auto plan = swarm_of("old_word,crash_rank,crash_supervisor,stop");
  plan.faults.swarm = false;
  budget of;
  of.first_seed = 1;
  of.runs = 60;
  of.vary_job = false;
  const auto all = explore({.ranks = 3, .checkpoint_every = 1}, plan, of);
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.met("old_word"));
  CHECK(all.met("a rank refuses a message of another life or generation"));
  CHECK(all.met("the supervisor refuses a message of another life or generation"));
  CHECK(all.met("a snapshot of another job is dropped"));
}

TEST_CASE("a swarm draws how often faults occur; without a draw the given rates apply",
          "[simulated][faults]") {
  fault_options given;
  given.may = fault_set::all();
  const auto same = [](const fault_options& a, const fault_options& b) {
    return a.per_attempt == b.per_attempt && a.fault_per_million == b.fault_per_million &&
           a.storage_per_million == b.storage_per_million;
  };
  auto nothing = choices::of_list(1, {});
  CHECK(same(draw_how_often(nothing, given), given));
  std::set<std::uint32_t> faults, rates, storage;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    auto from = choices::of_seed(seed);
    const auto drawn = draw_how_often(from, given);
    faults.insert(drawn.per_attempt);
    rates.insert(drawn.fault_per_million);
    storage.insert(drawn.storage_per_million);
  }
  CHECK(faults == std::set<std::uint32_t>{1, 3, 6});
  CHECK(rates.size() == 3);
  CHECK(storage.size() == 3);
  given.swarm = false;
  auto from = choices::of_seed(1);
  CHECK(same(draw_how_often(from, given), given));
  CHECK(from.draws() == 0);
}
