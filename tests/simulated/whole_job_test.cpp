// Goal: the production supervisor and rank actors run whole jobs with a learner of the test in a
// simulation, under any schedule. The weights are those of the formula, and an exception reaches
// the caller as the first cause.
#include <map>
#include <stdexcept>

#include "apps/testing/scripted_simulation.hpp"
#include "tests/support/integer_learner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// A simulation with this seed in which all ranks run beside the supervisor.
script_options beside(std::uint64_t seed) {
  return {.seed = seed, .schedule = scheduling::random, .cluster = {.ranks_per_host = 0}};
}

job integer_job(integer_options options, std::int32_t ranks) {
  job what;
  what.options.ranks = ranks;
  what.options.batch_size = 2;
  what.options.max_epochs = 2;
  what.recipe = std::make_shared<integer_recipe>(std::move(options));
  return what;
}

}  // namespace

TEST_CASE("three ranks train integers to the expected weights under any schedule", "[simulated]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    integer_options options;
    auto what = integer_job(options, 3);
    what.options.accumulate_grad_batches = 1 + static_cast<std::int64_t>(seed % 3);
    scripted_simulation script{beside(seed)};
    const auto outcome = script.run(what);
    if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
    CHECK(outcome.status == job_outcome::ending::finished);
    CHECK(integers_of(outcome.result) ==
          expected_integers(options, 3, what.options, outcome.loop.steps));
    CHECK(outcome.loop.samples == 2 * options.samples);
    CHECK(outcome.survivors.empty());
    CHECK(outcome.late.empty());
    REQUIRE(script.in().actors() == 0);
  }
}

TEST_CASE("a message queued for an earlier caller is not returned", "[simulated]") {
  scripted_simulation script{beside(1)};
  const auto& outcome =
      script.run(integer_job({}, 2), [](std::uint64_t event, const supervisor_actor& supervisor) {
        fence at;
        at.job = job_id{4711};
        if (event % 20 == 0) caf::anon_send(supervisor, queue_value{at, {std::int64_t{1}}});
      });
  CHECK(outcome.ok());
  CHECK(outcome.queue.empty());
}

TEST_CASE("equal seeds give equal schedules", "[simulated]") {
  const auto hashes_of = [](std::uint64_t seed) {
    scripted_simulation script{beside(seed)};
    script.run(integer_job({}, 3));
    return script.in().hashes();
  };
  CHECK(hashes_of(7) == hashes_of(7));
  CHECK_FALSE(hashes_of(7) == hashes_of(8));
}

TEST_CASE("throw in any hook of any rank: it is the caller's first cause", "[simulated]") {
  for (const std::string_view where : {"setup", "on_train_batch_start", "training_step", "backward",
                                       "optimizer_step", "on_train_epoch_end", "on_fit_end"}) {
    for (std::int32_t rank = 0; rank < 3; ++rank) {
      INFO(where << " on rank " << rank);
      integer_options options;
      options.at_hook = [=](const learner_context& context, const hook& h) {
        if (context.rank == rank && name(h) == where) throw std::domain_error("disk full");
      };
      scripted_simulation script{beside(static_cast<std::uint64_t>(rank))};
      const auto outcome = script.run(integer_job(options, 3));
      REQUIRE(outcome.status == job_outcome::ending::failed);
      const auto& first = outcome.failed_with->record;
      CHECK(first.type == "std::domain_error");
      CHECK(first.what == "disk full");
      CHECK(first.rank == rank);
      CHECK(first.hook == where);
      CHECK_THROWS_AS(outcome.rethrow(), std::domain_error);
      REQUIRE(script.in().actors() == 0);
    }
  }
}

TEST_CASE("throw: on_exception runs on every rank, and teardown has no barrier", "[simulated]") {
  std::map<std::int32_t, std::vector<std::string>> handled;
  integer_options options;
  options.at_hook = [&](const learner_context& context, const hook& h) {
    handled[context.rank].emplace_back(name(h));
    if (context.rank == 1 && name(h) == "training_step") throw std::domain_error("disk full");
  };
  scripted_simulation script{beside(3)};
  const auto outcome = script.run(integer_job(options, 3));
  REQUIRE_FALSE(outcome.ok());
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    REQUIRE(handled[rank].size() >= 2);
    CHECK(handled[rank].end()[-2] == "on_exception");
    CHECK(handled[rank].end()[-1] == "teardown");
  }
}

TEST_CASE("stop requested at any event: all ranks end at one step boundary", "[simulated]") {
  std::uint64_t events = 0;
  {
    scripted_simulation script{beside(5)};
    script.run(integer_job({}, 3));
    events = script.in().events();
  }
  for (std::uint64_t at = 0; at < events; at += 3) {
    INFO("event " << at);
    scripted_simulation script{beside(5)};
    const integer_options options;
    const auto what = integer_job(options, 3);
    const auto outcome =
        script.run(what, [&](std::uint64_t event, const supervisor_actor& supervisor) {
          if (event == at)
            caf::anon_send(supervisor, caller_request{request_stop{stop_reason::interrupt}});
        });
    if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
    CHECK(integers_of(outcome.result) ==
          expected_integers(options, 3, what.options, outcome.loop.steps));
    if (outcome.status == job_outcome::ending::stopped)
      CHECK(outcome.why == stop_reason::interrupt);
    REQUIRE(script.in().actors() == 0);
  }
}

TEST_CASE("abort at any event: the job fails and no actor is left", "[simulated]") {
  for (std::uint64_t at = 0; at < 400; at += 7) {
    INFO("event " << at);
    scripted_simulation script{beside(6)};
    const auto outcome = script.run(
        integer_job({}, 3), [&](std::uint64_t event, const supervisor_actor& supervisor) {
          if (event == at) caf::anon_send(supervisor, caller_request{request_abort{"enough"}});
        });
    if (at < 200) REQUIRE(outcome.status == job_outcome::ending::failed);
    // or the job was over before
    if (!outcome.ok()) CHECK(outcome.failed_with->record.what == "enough");
    REQUIRE(script.in().actors() == 0);
  }
}

TEST_CASE("generation does not form: a membership error with its own type", "[simulated]") {
  for (const bool says_so : {false, true}) {
    scripted_simulation script{beside(2)};
    script.sim_job().before_start = [&](supervisor_setup& setup) {
      setup.bring_rank = [says_so, others = setup.bring_rank](caf::actor_system& system,
                                                              actor_error_handler trouble,
                                                              rank_setup given) -> rank_actor {
        if (given.plan.rank != 1) return others(system, std::move(trouble), std::move(given));
        fence at;
        at.job = given.plan.job;
        at.incarnation = given.plan.incarnation;
        auto why = make_failure(failure_kind::start_failed, "no such host");
        if (says_so)
          caf::anon_send(given.supervisor,
                         rank_failed{at, without_exception(std::move(why)), true});
        return {};
      };
    };
    const auto outcome = script.run(integer_job({}, 3));
    REQUIRE(outcome.status == job_outcome::ending::failed);
    CHECK(outcome.failed_with->record.code == errc::membership);
    CHECK_THAT(outcome.failed_with->record.what,
               Catch::Contains(says_so ? "rank 1 could not be started: no such host"
                                       : "did not form in 10000 ms: no answer from rank 1"));
    try {
      outcome.rethrow();
      FAIL("nothing was thrown");
    } catch (const user_error& error) {
      CHECK(error.code() == errc::membership);
    }
    REQUIRE(script.in().actors() == 0);
  }
}

TEST_CASE("a scripted job has hooks that call collectives where it asks for them", "[simulated]") {
  const auto events = [](bool collectives) {
    scripted_simulation script;
    script.train({.ranks = 3, .steps = 6, .collectives = collectives});
    CHECK(script.run().ok());
    CHECK(script.weights() == script.reference_weights());
    return script.in().events();
  };
  CHECK(events(true) > events(false));
}

TEST_CASE("a second scripted job begins anew, and not where the first one ended", "[simulated]") {
  scripted_simulation script;
  script.train({.ranks = 3, .steps = 20, .checkpoint_every = 2});
  CHECK(script.run().ok());
  script.train({.ranks = 2, .steps = 10, .checkpoint_every = 2});
  CHECK(script.run().ok());
  CHECK(script.weights() == script.reference_weights());
  script.train_again();  // from the checkpoint of this job
  CHECK(script.steps_of(0) == 10);
  CHECK(script.run().ok());
  CHECK(script.weights() == script.reference_weights());
}
