// Goal: a time limit never calls into a destroyed object, in any order of the event loop's queue.
#include "backends/tcp/time_limit.hpp"

#include <optional>

#include "tests/support/catch.hpp"

using std::chrono::nanoseconds;
using troupe::tcp::time_limit;

TEST_CASE("a time limit that passes calls its function once") {
  boost::asio::io_context loop;
  int calls = 0;
  const time_limit limit{loop, nanoseconds{0}, [&] { ++calls; }};
  loop.run();
  CHECK(calls == 1);
}

TEST_CASE("a time limit does not count the time in which the process was stopped") {
  boost::asio::io_context loop;
  // The timer passes each time, and by this clock nothing has passed for the first ten times.
  int reads = 0;
  const auto now = [&] {
    const bool stopped = ++reads < 10;
    return time_limit::clock::time_point{nanoseconds{stopped ? 0 : 1}};
  };
  int calls = 0;
  const time_limit limit{loop, nanoseconds{1}, [&] { ++calls; }, now};
  loop.run();
  CHECK(calls == 1);
  CHECK(reads >= 10);
}

TEST_CASE("a time limit stopped or destroyed after it passed but before its call does not call") {
  const bool destroyed = GENERATE(false, true);
  boost::asio::io_context loop;
  int calls = 0;
  std::optional<time_limit> limit;
  // Both times have passed when the loop starts, so that both handlers are in its queue at once.
  boost::asio::steady_timer earlier{loop, nanoseconds{-1'000'000}};
  earlier.async_wait([&](const boost::system::error_code&) {
    if (destroyed)
      limit.reset();
    else
      limit->stop();
  });
  limit.emplace(loop, nanoseconds{0}, [&] { ++calls; });
  loop.run();
  CHECK(calls == 0);
}
