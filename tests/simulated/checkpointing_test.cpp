// Goal: the checkpointer actor beside whole jobs, on a simulated disk. A checkpoint that is
// reported to the caller is on the disk under any schedule. A disk that fails or hangs costs
// reports and a named survivor, never the job.
#include "apps/testing/scripted_simulation.hpp"
#include "backends/checkpoint/run_checkpoints.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "tests/support/integer_learner.hpp"
#include "tests/support/temporary_folder.hpp"

#include <cstring>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// A simulation in which all ranks run beside the supervisor; checkpoints have the real format.
script_options saving(std::uint64_t seed) {
  return {.seed = seed,
          .schedule = scheduling::random,
          .cluster = {.ranks_per_host = 0},
          .checkpoints = safetensors_checkpoints({})};
}

job saving_job(std::int32_t ranks = 3) {
  job what;
  what.options.ranks = ranks;
  what.options.batch_size = 2;
  what.options.max_epochs = 3;
  what.options.checkpoint.every_n_steps = 2;
  what.options.checkpoint.monitor = "train/loss";
  what.recipe = std::make_shared<integer_recipe>(integer_options{});
  what.run_folder = "run";
  return what;
}

// Has a score at the end of the first epoch, step 4.
class scored_learner : public integer_learner {
public:
  using integer_learner::integer_learner;
  hook_outcome on(const hook& h, const closure& inner) override {
    auto out = integer_learner::on(h, inner);
    const auto* step = h.get_if<hooks::optimizer_step>();
    if (step && step->at.step == 3) out.logged["score"] = 1;
    return out;
  }
};

class scored_recipe : public learner_recipe {
public:
  std::unique_ptr<learner> make(const learner_context& context) const override {
    return std::make_unique<scored_learner>(context, integer_options{});
  }
};

std::vector<std::int64_t> bytes_as_integers(const tensor_blob& tensor) {
  std::vector<std::int64_t> numbers(tensor.bytes->size() / sizeof(std::int64_t));
  std::memcpy(numbers.data(), tensor.bytes->data(), tensor.bytes->size());
  return numbers;
}

std::vector<std::string> names_in(const simulated_storage& files, const std::string& folder) {
  auto copy = files.disk();
  return copy.perform(storage_ops::list{folder}).names;
}

}  // namespace

TEST_CASE("a checkpoint that was reported is on the disk under any schedule",
          "[simulated][checkpoint]") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    scripted_simulation script{saving(seed)};
    const auto what = saving_job();
    const auto outcome = script.run(what);
    if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
    CHECK(outcome.late.empty());
    CHECK(outcome.survivors.empty());
    CHECK(outcome.last_checkpoint ==
          "run/checkpoints/" + checkpoint_folder_name(outcome.loop.steps));
    REQUIRE(script.in().actors() == 0);

    temporary_folder folder;
    script.files().disk().unload(folder.path());
    const auto found = latest_checkpoint(folder.path() / "run");
    CHECK(found.path == (folder.path() / outcome.last_checkpoint).string());
    CHECK(found.refused.empty());
    const auto state = read_checkpoint(found.path);
    CHECK(state.loop.steps == outcome.loop.steps);
    CHECK(bytes_as_integers(state.model.at(0)) ==
          expected_integers({}, 3, what.options, outcome.loop.steps));
    CHECK(std::filesystem::exists(folder.path() / outcome.best_checkpoint / "manifest.json"));
    CHECK(names_in(script.files(), "run/checkpoints").size() <= 3);  // latest, last and best
  }
}

TEST_CASE("no best checkpoints are kept: the outcome names one that is there, or none",
          "[simulated][checkpoint]") {
  for (const std::int64_t steps : {4, 6}) {
    scripted_simulation script{saving(1)};
    auto what = saving_job();
    what.options.max_steps = steps;
    what.options.checkpoint.keep_best = 0;
    what.options.checkpoint.monitor = "score";
    what.recipe = std::make_shared<scored_recipe>();
    const auto outcome = script.run(what);
    REQUIRE(outcome.ok());
    CHECK(outcome.best_checkpoint == (steps == 4 ? outcome.last_checkpoint : ""));
    CHECK(names_in(script.files(), "run/checkpoints").size() == 2);  // latest and last
  }
}

TEST_CASE("disk stays full: the job trains to its end and fails at the last checkpoint",
          "[simulated][checkpoint]") {
  scripted_simulation script{saving(1)};
  script.files().set_fault([](const storage_op& op) -> storage_fault {
    const bool writes = std::holds_alternative<storage_ops::write>(op);
    return {writes ? storage_fault::kind::full : storage_fault::kind::none};
  });
  const auto outcome = script.run(saving_job());
  REQUIRE(outcome.failed_with);
  CHECK(outcome.status == job_outcome::ending::failed);
  CHECK(outcome.failed_with->record.code == errc::checkpoint);
  CHECK(outcome.failed_with->record.hook == "save_checkpoint");
  CHECK_THROWS_AS(outcome.rethrow(), user_error);
  CHECK(outcome.loop.steps == 12);
  CHECK(outcome.last.contains("train/loss"));
  CHECK(outcome.last_checkpoint.empty());
  REQUIRE_FALSE(outcome.late.empty());
  for (const auto& f : outcome.late) {
    CHECK(f.type == "troupe::user_error");
    CHECK(f.hook == "save_checkpoint");
    CHECK_THAT(f.what, Catch::Contains("free some space"));
  }
  CHECK(names_in(script.files(), "run/checkpoints").empty());
}

TEST_CASE("disk fails for a while: only checkpoints of that time are lost",
          "[simulated][checkpoint]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    scripted_simulation script{saving(seed)};
    int operations = 0;
    script.files().set_fault([&](const storage_op&) -> storage_fault {
      const bool fails = ++operations > 3 && operations < 6;
      return {fails ? storage_fault::kind::error : storage_fault::kind::none};
    });
    const auto outcome = script.run(saving_job());
    REQUIRE(outcome.ok());
    CHECK_FALSE(outcome.late.empty());
    REQUIRE_FALSE(outcome.last_checkpoint.empty());
    temporary_folder folder;
    script.files().disk().unload(folder.path());
    CHECK(latest_checkpoint(folder.path() / "run").path ==
          (folder.path() / outcome.last_checkpoint).string());
  }
}

TEST_CASE("run folder cannot be made: the job fails at its start", "[simulated][checkpoint]") {
  scripted_simulation script{saving(1)};
  script.files().set_fault([](const storage_op& op) -> storage_fault {
    const bool makes = std::holds_alternative<storage_ops::make_folder>(op);
    return {makes ? storage_fault::kind::error : storage_fault::kind::none};
  });
  const auto outcome = script.run(saving_job());
  REQUIRE(outcome.failed_with);
  CHECK(outcome.failed_with->record.code == errc::checkpoint);
  CHECK(outcome.loop.steps < 12);
  CHECK(outcome.late.empty());
  CHECK(outcome.survivors.empty());
}

TEST_CASE("a failed fit reports its newest checkpoint and its last metrics",
          "[simulated][checkpoint]") {
  scripted_simulation script{saving(2)};
  auto what = saving_job();
  integer_options options;
  options.at_hook = [](const learner_context& context, const hook& h) {
    if (context.rank != 1) return;
    if (const auto* x = h.get_if<hooks::training_step>(); x && x->at.step == 7)
      throw std::runtime_error("step seven");
  };
  options.load = [&](const std::string& path) {
    temporary_folder folder;
    script.files().disk().unload(folder.path());
    return read_checkpoint(folder.path() / path);
  };
  what.recipe = std::make_shared<integer_recipe>(options);
  const auto first = script.run(what);
  REQUIRE(first.failed_with);
  CHECK(first.failed_with->record.what == "step seven");
  REQUIRE(first.last_checkpoint.starts_with("run/checkpoints/step-"));
  CHECK(first.last.contains("train/loss"));
  what.resume = first.last_checkpoint;
  what.options.checkpoint.every_n_steps.reset();
  what.options.checkpoint.every_epoch = false;
  const auto second = script.run(what);
  REQUIRE(second.failed_with);
  CHECK(second.last_checkpoint == first.last_checkpoint);
}

TEST_CASE("disk hangs: the job ends and names the checkpointer as a survivor",
          "[simulated][checkpoint]") {
  scripted_simulation script{saving(3)};
  script.files().set_fault([](const storage_op& op) -> storage_fault {
    const bool first_file = std::holds_alternative<storage_ops::write>(op);
    return {first_file ? storage_fault::kind::hang : storage_fault::kind::none};
  });
  const auto outcome = script.run(saving_job());
  REQUIRE(outcome.failed_with);
  CHECK(outcome.failed_with->record.type == "deadline");
  CHECK(outcome.failed_with->record.code == errc::checkpoint);
  CHECK(outcome.survivors == std::vector<std::string>{"checkpointer: still writing"});
  CHECK(script.in().actors() == 1);

  // The disk works again: the checkpointer finishes its write and ends.
  script.files().set_fault({});
  script.files().go_on();
  script.settle();
  CHECK(script.in().actors() == 0);
  temporary_folder folder;
  script.files().disk().unload(folder.path());
  CHECK(latest_checkpoint(folder.path() / "run").refused.empty());
}

TEST_CASE("a run stopped at any step and resumed ends like an undisturbed run",
          "[simulated][checkpoint]") {
  for (std::int64_t stop = 1; stop < 12; ++stop) {
    INFO("stopped after step " << stop);
    scripted_simulation script{saving(static_cast<std::uint64_t>(stop))};
    auto what = saving_job();
    integer_options options;
    options.load = [&](const std::string& path) {
      temporary_folder folder;
      script.files().disk().unload(folder.path());
      return read_checkpoint(folder.path() / path);
    };
    what.recipe = std::make_shared<integer_recipe>(options);
    what.options.max_steps = stop;
    const auto first = script.run(what);
    REQUIRE(first.ok());
    CHECK(first.loop.steps == stop);
    what.options.max_steps.reset();
    what.resume = first.last_checkpoint;
    const auto second = script.run(what);
    if (!second.ok()) FAIL(render(second.failed_with->record));
    CHECK(second.loop.steps == 12);
    CHECK(bytes_as_integers(second.weights->model.at(0)) ==
          expected_integers({}, 3, what.options, 12));
    CHECK(second.last_checkpoint == "run/checkpoints/step-00000012");
    CHECK(names_in(script.files(), "run/checkpoints").size() <= 3);
  }
}

namespace {

/// Records which snapshots rank 0 offers, and whether each must be written.
struct note_taker {
  std::vector<std::pair<std::int64_t, bool>> offered;

  spawn_checkpointer_fn spawner() {
    return [this](caf::actor_system& system, actor_error_handler, job_id, const job&,
                  std::shared_ptr<storage>, const supervisor_actor& supervisor) {
      return system.spawn([this, supervisor](checkpointer_actor::pointer self) {
        return checkpointer_actor::behavior_type{
            [this](const write_checkpoint& m) { offered.emplace_back(m.what->loop.steps, m.must); },
            [](const step_committed&) {}, [](const storage_answered&) {},
            [self, supervisor](const flush&) {
              self->send(supervisor, flushed{"checkpointer", {}});
              self->quit();
            }};
      });
    };
  }
};

}  // namespace

TEST_CASE("only the last snapshot of a run must be written", "[simulated][checkpoint]") {
  using offers = std::vector<std::pair<std::int64_t, bool>>;
  const auto offered = [](std::optional<std::int64_t> max_steps, std::uint64_t stopped_at) {
    note_taker notes;
    scripted_simulation script{saving(4)};
    script.sim_job().before_start = [&](supervisor_setup& s) {
      s.spawn_checkpointer = notes.spawner();
    };
    auto what = saving_job();
    what.options.max_steps = max_steps;
    const auto outcome =
        script.run(what, [&](std::uint64_t event, const supervisor_actor& supervisor) {
          if (event == stopped_at && event > 0)
            caf::anon_send(supervisor, caller_request{request_stop{stop_reason::caller}});
        });
    if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
    CHECK(notes.offered.back() == std::pair{outcome.loop.steps, true});
    return notes.offered;
  };
  // Four steps per epoch: a snapshot every two steps; the last is due after an epoch's end.
  CHECK(offered(std::nullopt, 0) ==
        offers{{2, false}, {4, false}, {6, false}, {8, false}, {10, false}, {12, true}});
  CHECK(offered(3, 0) == offers{{2, false}, {3, true}});  // requested by itself
  CHECK(offered(4, 0) == offers{{2, false}, {4, true}});  // due anyway
  const auto stopped = offered(std::nullopt, 60);
  for (std::size_t i = 0; i + 1 < stopped.size(); ++i) CHECK_FALSE(stopped[i].second);
}
