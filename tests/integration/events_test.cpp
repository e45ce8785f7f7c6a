// Goal: a program with an event loop receives a job's events as a stream: in order and complete,
// one wait at a time, with a bound when nothing reads, ended when the job ends, and cancellable
// without loss.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <map>

#include "tests/support/integer_learner.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace asio = boost::asio;

namespace {

job integer_job(std::shared_ptr<event_stream> events) {
  integer_options options;
  options.can_wait = true;
  job what;
  what.options.ranks = 2;
  what.options.batch_size = 2;
  what.options.max_epochs = 2;
  what.recipe = std::make_shared<integer_recipe>(std::move(options));
  what.events = std::move(events);
  return what;
}

std::string event_of(const observation& what) {
  const auto* life = std::get_if<seen::lifecycle>(&what);
  return life ? std::string{to_string(life->event)} : "";
}

}  // namespace

TEST_CASE("a coroutine receives all events of a job in order until the end", "[events]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  const auto events =
      std::make_shared<event_stream>(loop.get_executor(), event_stream_options{.hooks = true});
  std::vector<std::string> life;
  std::map<std::int32_t, std::vector<std::string>> hooks;
  bool job_done = false, stream_done = false;
  asio::co_spawn(
      loop,
      [&]() -> asio::awaitable<void> {
        while (const auto event = co_await events->async_next(asio::use_awaitable)) {
          if (const auto name = event_of(*event); !name.empty()) life.push_back(name);
          if (const auto* h = std::get_if<seen::hook>(event.get()))
            hooks[h->rank].emplace_back(name(h->what));
        }
        stream_done = true;
      },
      asio::detached);
  s.async_fit(integer_job(events), [&](job_outcome o) { job_done = o.ok(); });
  loop.run();
  CHECK(job_done);
  CHECK(stream_done);
  CHECK(events->ended());
  CHECK(events->dropped() == 0);
  REQUIRE(life.size() > 3);
  CHECK(life.front() == "generation_forming");
  CHECK(life.back() == "job_ended");
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    REQUIRE(hooks[rank].size() > 10);
    CHECK(hooks[rank].front() == "connect");
    CHECK(hooks[rank].back() == "teardown");
  }
}

TEST_CASE("events are kept for a reader that starts after the end of the job", "[events]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  const auto events =
      std::make_shared<event_stream>(loop.get_executor(), event_stream_options{.limit = 8});
  auto what = integer_job(events);
  CHECK(s.run(what).ok());
  CHECK_FALSE(events->ended());
  CHECK(events->dropped() > 0);  // progress events are dropped first
  std::vector<std::string> life;
  std::function<void(observation_ptr)> next = [&](observation_ptr event) {
    if (!event) return;
    life.push_back(event_of(*event));
    events->async_next(next);
  };
  events->async_next(next);
  CHECK(life.empty());  // never inside the initiating call
  loop.run();
  CHECK(life.front() == "generation_forming");
  CHECK(life.back() == "job_ended");
  CHECK(events->ended());
  // A stream serves one job only.
  CHECK(s.run(what).failed_with->record.code == errc::bad_usage);
}

TEST_CASE("a stream counts events that were dropped before it", "[events]") {
  asio::io_context loop;
  event_stream events{loop.get_executor()};
  events.attach()()->finish(3);
  CHECK(events.dropped() == 3);
}

TEST_CASE("a cancelled wait returns no event and loses none", "[events]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  const auto events = std::make_shared<event_stream>(loop.get_executor());
  asio::cancellation_signal cancel;
  std::vector<int> order;
  events->async_next(asio::bind_cancellation_slot(cancel.slot(), [&](observation_ptr event) {
    CHECK_FALSE(event);
    CHECK_FALSE(events->ended());
    order.push_back(1);
  }));
  std::string first;
  events->async_next([&](observation_ptr event) {
    first = event_of(*event);
    order.push_back(2);
  });
  cancel.emit(asio::cancellation_type::total);
  loop.poll();
  CHECK(order == std::vector<int>{1});
  CHECK(s.run(integer_job(events)).ok());
  loop.run();
  CHECK(order == std::vector<int>{1, 2});
  CHECK(first == "generation_forming");
}

TEST_CASE("a job is refused or never runs: its stream ends", "[events]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  auto events = std::make_shared<event_stream>(loop.get_executor());
  auto what = integer_job(events);
  what.options.ranks = 0;
  int ends = 0;
  events->async_next([&](observation_ptr event) { ends += event == nullptr; });
  CHECK_FALSE(s.run(what).ok());
  loop.run();
  CHECK(ends == 1);
  events = std::make_shared<event_stream>(loop.get_executor());
  events->async_next([&](observation_ptr event) { ends += event == nullptr; });
  CHECK_FALSE(session(loop.get_executor(), ports{}).run(integer_job(events)).ok());
  loop.restart();
  loop.run();
  CHECK(ends == 2);
  what = {};
  events = std::make_shared<event_stream>(loop.get_executor());
  events->async_next([&](observation_ptr event) { ends += event == nullptr; });
  events = nullptr;
  loop.restart();
  loop.run();
  CHECK(ends == 3);
}

TEST_CASE("a stream that a second job is given: that job is refused, the first one's events go on",
          "[events]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  const auto events = std::make_shared<event_stream>(loop.get_executor());
  std::vector<std::string> life;
  std::function<void(observation_ptr)> next = [&](observation_ptr event) {
    if (!event) return;
    life.push_back(event_of(*event));
    events->async_next(next);
  };
  int finished = 0, refused = 0;
  const auto count = [&](const job_outcome& o) { ++(o.ok() ? finished : refused); };
  s.async_fit(integer_job(events), count);
  s.async_fit(integer_job(events), count);
  events->async_next(next);
  loop.run();
  CHECK(finished == 1);
  CHECK(refused == 1);
  REQUIRE_FALSE(life.empty());
  CHECK(life.back() == "job_ended");
}
