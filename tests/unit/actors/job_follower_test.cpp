// Goal: what a job's status says of its rate, its time left and its newest failures follows from
// its observations and the clock alone.
#include "actors/job_follower.hpp"

#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

// A fit of two epochs of 100 batches whose events come when the test says so.
struct followed {
  explicit followed(std::optional<std::int64_t> max_steps = std::nullopt,
                    stage purpose = stage::train, std::int64_t max_epochs = 2,
                    std::optional<std::chrono::nanoseconds> max_time = std::nullopt) {
    job what;
    what.purpose = purpose;
    what.options.ranks = 2;
    what.options.max_epochs = max_epochs;
    what.options.max_steps = max_steps;
    what.options.max_time = max_time;
    what.options.elastic.max_restarts = 3;
    follower = std::make_shared<job_follower>(7, what, 0, [this] { return now; });
    into = job_follower::observe(follower)();
  }

  void life(lifecycle_kind event, std::map<std::string, std::string> details = {}) {
    into->on(seen::lifecycle{event, -1, 1, 0, std::move(details)});
  }
  void forms_again(const std::string& cause) {
    life(lifecycle_kind::generation_forming, {{"cause", cause}, {"restarts_left", "2"}});
  }
  void is_active() { life(lifecycle_kind::generation_active, {{"ranks", "2"}, {"shards", "4"}}); }
  // `batch` of `epoch` was trained at this second.
  void trains(double second, std::int64_t epoch, std::int64_t batch) {
    now = std::chrono::milliseconds{static_cast<std::int64_t>(second * 1000)};
    const auto step = epoch * 100 + batch + 1;
    into->on(seen::progress{
        {.stage = stage::train, .epoch = epoch, .step = step, .batch = batch}, 100, step * 16});
  }
  job_status status() const { return follower->status(); }

  std::chrono::nanoseconds now{0};
  std::shared_ptr<job_follower> follower;
  std::unique_ptr<observer> into;
};

}  // namespace

TEST_CASE("a fit at ten steps per second: rate and time left are unknown at first, then right",
          "[follower]") {
  followed job;
  job.is_active();
  job.trains(10, 0, 0);
  CHECK_FALSE(job.status().samples_per_second);
  CHECK_FALSE(job.status().seconds_left);
  for (int i = 1; i <= 50; ++i) job.trains(10 + i / 10.0, 0, i);
  CHECK(job.status().shards == 4);
  CHECK(job.status().step == 51);
  REQUIRE(job.status().samples_per_second);
  CHECK(*job.status().samples_per_second == Approx(160));
  REQUIRE(job.status().seconds_left);
  CHECK(*job.status().seconds_left == Approx(14.9));  // 149 batches are left
  // Time passes without a step: less is left, and the rate falls.
  job.now += std::chrono::seconds{10};
  CHECK(*job.status().seconds_left == Approx(4.9));
  CHECK(*job.status().samples_per_second < 60);
  job.now += std::chrono::seconds{10};
  CHECK(*job.status().seconds_left == 0);
}

TEST_CASE("a limit of steps that comes before that of epochs: it decides the time left",
          "[follower]") {
  followed job{101};
  job.is_active();
  for (int i = 0; i <= 50; ++i) job.trains(i / 10.0, 0, i);
  CHECK(*job.status().seconds_left == Approx(5.0));
}

TEST_CASE("no limit of epochs: the limit of steps alone decides the time left", "[follower]") {
  followed limited{101, stage::train, -1}, endless{std::nullopt, stage::train, -1};
  for (auto* job : {&limited, &endless}) {
    job->is_active();
    for (int i = 0; i <= 50; ++i) job->trains(i / 10.0, 0, i);
  }
  CHECK(*limited.status().seconds_left == Approx(5.0));
  CHECK_FALSE(endless.status().seconds_left);
}

TEST_CASE("a limit of time that comes before that of epochs: it decides the time left",
          "[follower]") {
  followed job{std::nullopt, stage::train, 2, std::chrono::seconds{12}};
  job.is_active();
  for (int i = 0; i <= 50; ++i) job.trains(10 + i / 10.0, 0, i);
  CHECK(*job.status().seconds_left == Approx(7.0));
  job.now += std::chrono::seconds{8};
  CHECK(*job.status().seconds_left == 0);
}

TEST_CASE("a new generation: rate and time left begin anew, and a restart counts", "[follower]") {
  followed job;
  job.is_active();
  for (int i = 0; i <= 50; ++i) job.trains(i / 10.0, 0, i);
  job.forms_again("failure");
  CHECK(job.status().state == job_state::forming);
  CHECK_FALSE(job.status().samples_per_second);
  job.is_active();
  CHECK_FALSE(job.status().samples_per_second);
  CHECK_FALSE(job.status().seconds_left);
  CHECK(job.status().restarts == 1);
  CHECK(job.status().restarts_left == 2);
  job.forms_again("scaled");
  CHECK(job.status().restarts == 1);
}

TEST_CASE("an evaluation: its progress is no step of training", "[follower]") {
  followed job{std::nullopt, stage::test};
  job.is_active();
  for (int i = 0; i <= 50; ++i) job.trains(i / 10.0, 0, i);
  CHECK(job.status().step == 0);
  CHECK(job.status().batch == 50);
  CHECK_FALSE(job.status().samples_per_second);
  CHECK_FALSE(job.status().seconds_left);
}

TEST_CASE("an event after the job's end does not change its status", "[follower]") {
  followed job;
  job.is_active();
  job.follower->end({});
  job.life(lifecycle_kind::generation_closing);
  job.life(lifecycle_kind::teardown);
  CHECK(job.status().state == job_state::ended);
}

TEST_CASE("a stream that follows a job: it counts what was dropped before it", "[follower]") {
  followed job;
  boost::asio::io_context loop;
  const auto stream = std::make_shared<event_stream>(loop.get_executor());
  job.follower->add(stream, stream->attach()());
  job.into->finish(3);
  CHECK(stream->dropped() == 3);
}

TEST_CASE("many failures and many names of metrics: the newest and the first ones are kept",
          "[follower]") {
  followed job;
  for (int i = 0; i < 20; ++i) {
    seen::lifecycle event{lifecycle_kind::rank_failed, i, 3, i};
    event.cause = std::make_shared<const failure>(
        failure{.kind = failure_kind::signal, .what = "bad \xff text", .rank = i});
    job.into->on(event);
  }
  for (int i = 0; i < 600; ++i)
    job.into->on(
        seen::metrics{{}, {{"metric" + std::to_string(i), 1.0 * i}, {"metric0", 2.0 * i}}});
  const auto status = job.status();
  CHECK(status.failures == 20);
  REQUIRE(status.newest_failures.size() == 16);
  CHECK(status.newest_failures.front().rank == 4);
  CHECK(status.newest_failures.back().generation == 3);
  CHECK(status.last.size() == 512);
  CHECK(status.last.at("metric0") == 1198);
  const auto json = nlohmann::json::parse(to_json(status));
  CHECK(json["id"] == 7);
  CHECK(json["stage"] == "train");
  CHECK(json["newest_failures"][0]["kind"] == "signal");
  CHECK(json["epoch"].is_null());
}
