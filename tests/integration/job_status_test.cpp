// Goal: a program holds its jobs: it sees how each stands while it runs and after its end, lists
// them, joins their events late, and may use any completion token meanwhile.
#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "tests/support/integer_learner.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace asio = boost::asio;

namespace {

using at_hook = std::function<void(const learner_context&, const hook&)>;

// A fit of `epochs` epochs of 6 steps.
job integer_fit(std::int64_t epochs, at_hook at = {}) {
  integer_options options;
  options.can_wait = true;
  options.at_hook = std::move(at);
  job what;
  what.options.ranks = 2;
  what.options.batch_size = 2;
  what.options.max_epochs = epochs;
  what.recipe = std::make_shared<integer_recipe>(std::move(options));
  return what;
}

constexpr std::int64_t endless = 1'000'000;

std::string life_of(const observation& what) {
  const auto* life = std::get_if<seen::lifecycle>(&what);
  return life ? std::string{to_string(life->event)} : "";
}

// --- the snippets of docs/service.md ---

asio::awaitable<troupe::job_outcome> train(troupe::session& session, troupe::job job,
                                           troupe::job_handle& held) {
  co_return co_await session.async_fit(with_handle(std::move(job), held), asio::use_awaitable);
}

std::string list_of_jobs(const troupe::session& session) {
  std::string lines;
  for (const auto& job : session.jobs()) lines += to_json(job.status()) + "\n";
  return lines;
}

asio::awaitable<void> follow(troupe::job_handle job, std::function<void(std::string_view)> send) {
  const auto events = std::make_shared<troupe::event_stream>(co_await asio::this_coro::executor);
  job.follow(events);
  while (const auto event = co_await events->async_next(asio::use_awaitable))
    if (const auto* life = std::get_if<troupe::seen::lifecycle>(event.get()))
      send(to_string(life->event));
}

}  // namespace

TEST_CASE("the documented service: it trains, lists its jobs and follows one", "[status]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  job_handle held;
  std::vector<std::string> sent;
  std::optional<job_outcome> outcome;
  asio::co_spawn(
      loop,
      [&]() -> asio::awaitable<void> { outcome = co_await train(s, integer_fit(endless), held); },
      asio::detached);
  loop.poll();
  CHECK(nlohmann::json::parse(list_of_jobs(s))["id"] == 1);
  asio::co_spawn(loop, follow(held, [&](std::string_view name) { sent.emplace_back(name); }),
                 asio::detached);
  loop.poll();
  held.stop();
  loop.run();
  REQUIRE(outcome);
  CHECK(outcome->status == job_outcome::ending::stopped);
  REQUIRE_FALSE(sent.empty());
  CHECK(sent.back() == "job_ended");
  CHECK(list_of_jobs(s).empty());
}

TEST_CASE("a held job: its status follows the run and outlives the session", "[status]") {
  asio::io_context loop;
  job_handle held;
  {
    session s{loop.get_executor()};
    std::optional<job_outcome> outcome;
    job_status at_completion;
    s.async_fit(with_handle(integer_fit(2), held), [&](job_outcome o) {
      outcome = std::move(o);
      at_completion = held.status();
    });
    CHECK(held);
    CHECK(held.id() == 1);
    CHECK(held.status().ranks == 2);
    CHECK(held.status().epochs == 2);
    CHECK(s.jobs() == std::vector{held});
    loop.run();
    REQUIRE(outcome);
    CHECK(at_completion.state == job_state::ended);
    CHECK(s.jobs().empty());
  }
  const auto last = held.status();
  CHECK(last.state == job_state::ended);
  CHECK(last.ended == job_outcome::ending::finished);
  CHECK(last.step == 12);
  CHECK(last.samples == 48);
  CHECK(last.epoch >= 1);
  CHECK(last.generation == 1);
  CHECK(last.last.contains("train/loss"));
  CHECK(last.failures == 0);
  CHECK_FALSE(last.seconds_left);
  held.stop();
  held.abort();
  held.scale(3);
}

TEST_CASE("a default-constructed handle: it has no id, is ended, and calls change nothing",
          "[status]") {
  const job_handle none;
  CHECK_FALSE(none);
  CHECK(none.id() == 0);
  CHECK(none.status().state == job_state::ended);
  asio::io_context loop;
  const auto events = std::make_shared<event_stream>(loop.get_executor());
  none.follow(events);
  CHECK(events->ended());
}

TEST_CASE("several threads ask a running job: steps never go back", "[status]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  job_handle held;
  std::optional<job_outcome> outcome;
  s.async_fit(with_handle(integer_fit(200), held), [&](job_outcome o) { outcome = std::move(o); });
  std::atomic<int> wrong{0}, asked{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i)
    clients.emplace_back([&, copy = held] {
      std::int64_t step = 0;
      for (bool over = false; !over; ++asked) {
        const auto now = copy.status();
        over = now.state == job_state::ended;
        wrong += now.step < step || now.ranks != 2;
        step = now.step;
        for (const auto& one : s.jobs()) wrong += one != copy;
        wrong += !nlohmann::json::accept(to_json(now));
      }
      wrong += step != 1200;
    });
  loop.run();
  for (auto& one : clients) one.join();
  REQUIRE(outcome);
  CHECK(outcome->ok());
  CHECK(wrong == 0);
  CHECK(asked > 4);
}

TEST_CASE("two jobs of a session: the list has both, and a stop ends only its own job",
          "[status]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  job_handle first, second;
  std::vector<std::string> order;
  s.async_fit(with_handle(integer_fit(endless), first), [&](const job_outcome& o) {
    CHECK(o.status == job_outcome::ending::stopped);
    CHECK(s.jobs() == std::vector{second});
    order.emplace_back("first");
    second.abort("enough");
  });
  s.async_fit(with_handle(integer_fit(endless), second), [&](const job_outcome& o) {
    CHECK(o.status == job_outcome::ending::failed);
    order.emplace_back("second");
  });
  CHECK(s.jobs() == std::vector{first, second});
  CHECK(first != second);
  first.stop();
  loop.run();
  CHECK(order == std::vector<std::string>{"first", "second"});
  CHECK(first.status().ended == job_outcome::ending::stopped);
  CHECK(second.status().ended == job_outcome::ending::failed);
  CHECK(second.status().failures > 0);
}

TEST_CASE("a stop that was asked for shows in the status at once", "[status]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  job_handle held;
  const auto events = std::make_shared<event_stream>(loop.get_executor());
  auto what = integer_fit(endless);
  what.events = events;
  std::optional<job_outcome> outcome;
  job_state before{}, after{};
  s.async_fit(with_handle(std::move(what), held), [&](job_outcome o) { outcome = std::move(o); });
  asio::co_spawn(
      loop,
      [&]() -> asio::awaitable<void> {
        while (held.status().state != job_state::active)
          co_await events->async_next(asio::use_awaitable);
        before = held.status().state;
        held.stop();
        after = held.status().state;
      },
      asio::detached);
  loop.run();
  REQUIRE(outcome);
  CHECK(before == job_state::active);
  CHECK((after == job_state::stopping || after == job_state::ending));
  CHECK(held.status().ended == job_outcome::ending::stopped);
}

TEST_CASE("a rank that throws: the status and the event have the failure itself", "[status]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  job_handle held;
  const auto events = std::make_shared<event_stream>(loop.get_executor());
  auto what = integer_fit(3, [](const learner_context& who, const hook& h) {
    if (who.rank == 1 && h.is<hooks::training_step>() && where(h).step == 4)
      throw std::domain_error("not \xff a number");
  });
  what.events = events;
  s.async_fit(with_handle(std::move(what), held), [](const job_outcome&) {});
  std::vector<failure> causes;
  asio::co_spawn(
      loop,
      [&]() -> asio::awaitable<void> {
        while (const auto event = co_await events->async_next(asio::use_awaitable))
          if (const auto* life = std::get_if<seen::lifecycle>(event.get());
              life && life->event == lifecycle_kind::rank_failed && life->cause)
            causes.push_back(*life->cause);
      },
      asio::detached);
  loop.run();
  const auto is_mine = [](const failure& f) { return f.type == "std::domain_error"; };
  REQUIRE(std::count_if(causes.begin(), causes.end(), is_mine) == 1);
  const auto last = held.status();
  CHECK(last.ended == job_outcome::ending::failed);
  CHECK(last.failures == causes.size());
  const auto& all = last.newest_failures;
  const auto mine = std::find_if(all.begin(), all.end(), is_mine);
  REQUIRE(mine != all.end());
  CHECK(mine->kind == failure_kind::exception);
  CHECK(mine->rank == 1);
  CHECK(mine->step == 4);
  const auto json = nlohmann::json::parse(to_json(last));
  CHECK(json["ended"] == "failed");
  CHECK(json["failures"] == last.failures);
  CHECK(json["samples_per_second"].is_null());
}

TEST_CASE("a stream that joins late: events from then on, and the end with the job", "[status]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  job_handle held;
  const auto early = std::make_shared<event_stream>(loop.get_executor());
  const auto late = std::make_shared<event_stream>(loop.get_executor());
  auto what = integer_fit(endless);
  what.events = early;
  std::vector<std::string> life;
  bool done = false, late_done = false;
  s.async_fit(with_handle(std::move(what), held), [&](const job_outcome&) { done = true; });
  asio::co_spawn(
      loop,
      [&]() -> asio::awaitable<void> {
        while (held.status().state != job_state::active)
          co_await early->async_next(asio::use_awaitable);
        held.follow(late);
        held.follow(std::make_shared<event_stream>(loop.get_executor()));  // forgotten at once
        held.stop();
        while (const auto event = co_await late->async_next(asio::use_awaitable))
          if (const auto name = life_of(*event); !name.empty()) life.push_back(name);
        late_done = late->ended();
      },
      asio::detached);
  loop.run();
  CHECK(done);
  CHECK(late_done);
  REQUIRE_FALSE(life.empty());
  CHECK(life.front() != "generation_forming");
  CHECK(life.back() == "job_ended");
  // A stream has one job, a stream with hooks joins none, and an ended job has no events.
  CHECK_THROWS_AS(held.follow(late), user_error);
  CHECK_THROWS_AS(held.follow(nullptr), user_error);
  const auto hooks =
      std::make_shared<event_stream>(loop.get_executor(), event_stream_options{.hooks = true});
  CHECK_THROWS_WITH(held.follow(hooks), Catch::Contains("give it to the job as"));
  auto next_job = integer_fit(1);
  next_job.events = hooks;  // the advice works
  CHECK(s.run(std::move(next_job)).ok());
  CHECK_THROWS_AS(job_handle{}.follow(late), user_error);
  const auto after = std::make_shared<event_stream>(loop.get_executor());
  held.follow(after);
  CHECK(after->ended());
}

TEST_CASE("a held job with a future, a coroutine, a cancellation slot", "[status]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  job_handle by_future, by_coroutine, cancelled;
  auto future = s.async_fit(with_handle(integer_fit(1), by_future), asio::use_future);
  CHECK(by_future);
  asio::co_spawn(
      loop,
      [&]() -> asio::awaitable<void> {
        auto operation =
            s.async_fit(with_handle(integer_fit(1), by_coroutine), asio::use_awaitable);
        CHECK_FALSE(by_coroutine);  // it begins at the co_await
        const auto outcome = co_await std::move(operation);
        CHECK(outcome.ok());
      },
      asio::detached);
  asio::cancellation_signal cancel;
  s.async_fit(with_handle(integer_fit(endless), cancelled),
              asio::bind_cancellation_slot(cancel.slot(), [](const job_outcome&) {}));
  cancel.emit(asio::cancellation_type::terminal);
  loop.run();
  CHECK(future.get().ok());
  for (const auto& one : {by_future, by_coroutine})
    CHECK(one.status().ended == job_outcome::ending::finished);
  CHECK(cancelled.status().ended == job_outcome::ending::stopped);
}

TEST_CASE("a job that is refused: its handle stays empty, and no job is listed", "[status]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  job_handle held;
  auto what = integer_fit(1);
  what.options.ranks = 0;
  s.async_fit(with_handle(std::move(what), held),
              [](const job_outcome& o) { CHECK_FALSE(o.ok()); });
  loop.run();
  CHECK_FALSE(held);
  CHECK(s.jobs().empty());

  // It has a number. So has one that is refused before its options are settled.
  auto nowhere = integer_fit(1);
  nowhere.resume = "";
  CHECK_FALSE(s.run(nowhere).ok());
  CHECK(s.run(with_handle(integer_fit(1), held)).ok());
  CHECK(held.id() == 3);
}
