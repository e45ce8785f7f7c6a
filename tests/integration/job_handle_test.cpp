// Goal: a job's handle stops and aborts the job from any thread, and does nothing after its end.
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <optional>

#include "tests/support/integer_learner.hpp"
#include "troupe/session.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// A job that ends by its handle only. `act` runs in rank 0's third step, on the thread of its lane.
job endless_job(std::shared_ptr<job_handle> handle, std::function<void(const job_handle&)> act) {
  integer_options options;
  options.can_wait = true;
  options.at_hook = [=](const learner_context& who, const hook& what) {
    if (who.rank == 0 && what.is<hooks::training_step>() && where(what).step == 2) act(*handle);
  };
  job what;
  what.options.ranks = 2;
  what.options.batch_size = 2;
  what.options.max_epochs = 1'000'000;
  what.recipe = std::make_shared<integer_recipe>(std::move(options));
  what.started = [handle](const job_handle& of_job) { *handle = of_job; };
  return what;
}

job_outcome outcome_of(job what) {
  boost::asio::io_context loop;
  session s{loop.get_executor()};
  std::optional<job_outcome> outcome;
  s.async_fit(std::move(what), [&](job_outcome o) { outcome = std::move(o); });
  loop.run();
  REQUIRE(outcome);
  return *outcome;
}

}  // namespace

TEST_CASE("stop of a handle: the run ends at a step boundary, with the first reason", "[handle]") {
  const auto outcome =
      outcome_of(endless_job(std::make_shared<job_handle>(), [](const job_handle& handle) {
        handle.stop(stop_reason::terminate);
        handle.stop(stop_reason::caller);
      }));
  REQUIRE(outcome.status == job_outcome::ending::stopped);
  CHECK(outcome.why == stop_reason::terminate);
  CHECK(outcome.loop.steps > 2);
  CHECK(outcome.weights->loop.steps == outcome.loop.steps);
}

TEST_CASE("stop with a reason of the run itself: a user_error, and the job goes on", "[handle]") {
  const auto why = GENERATE(stop_reason::none, stop_reason::hook, stop_reason::early_stopping);
  const auto outcome =
      outcome_of(endless_job(std::make_shared<job_handle>(), [why](const job_handle& handle) {
        CHECK_THROWS_WITH(handle.stop(why), Catch::Contains("give caller, interrupt or terminate"));
        CHECK(handle.status().state != job_state::stopping);
        handle.stop();
      }));
  CHECK(outcome.status == job_outcome::ending::stopped);
  CHECK(outcome.why == stop_reason::caller);
}

TEST_CASE("abort of a handle: the job fails at once with the text", "[handle]") {
  const auto outcome =
      outcome_of(endless_job(std::make_shared<job_handle>(),
                             [](const job_handle& handle) { handle.abort("enough of it"); }));
  REQUIRE(outcome.status == job_outcome::ending::failed);
  CHECK(outcome.failed_with->record.kind == failure_kind::aborted);
  CHECK(outcome.failed_with->record.what == "enough of it");
}

TEST_CASE("a handle of no job or of an ended one: calls change nothing", "[handle]") {
  const auto handle = std::make_shared<job_handle>();
  handle->stop();
  const auto stop = [](const job_handle& x) { x.stop(); };
  outcome_of(endless_job(handle, stop));
  handle->stop();
  handle->abort();
  handle->scale(1);
  CHECK_THROWS_AS(handle->scale(0), user_error);
  const auto first = *handle;
  // The old handle does not reach the next job.
  const auto outcome = outcome_of(endless_job(handle, [first](const job_handle& x) {
    first.abort();
    x.stop();
  }));
  CHECK(outcome.status == job_outcome::ending::stopped);
}

TEST_CASE("started of a job throws: the job is aborted with the text", "[handle]") {
  auto what = endless_job(std::make_shared<job_handle>(), [](const job_handle&) {});
  what.started = [](const job_handle&) { throw std::domain_error("no room for a handle"); };
  const auto outcome = outcome_of(std::move(what));
  REQUIRE(outcome.status == job_outcome::ending::failed);
  CHECK(outcome.failed_with->record.what.find("no room for a handle") != std::string::npos);
}

TEST_CASE("a trainer calls started for each job, and not for one that is refused", "[handle]") {
  int count = 0;
  trainer_options options;
  options.ranks = 1;
  options.max_epochs = 1;
  job_context context;
  context.started = [&](const job_handle&) { ++count; };
  trainer both{options, context};
  const auto recipe = std::make_shared<integer_recipe>(integer_options{});
  CHECK(both.run(stage::train, recipe).ok());
  CHECK(both.run(stage::test, recipe).ok());
  CHECK(count == 2);
  both.context().resume = "";
  CHECK_FALSE(both.run(stage::train, recipe).ok());
  CHECK(count == 2);
}
