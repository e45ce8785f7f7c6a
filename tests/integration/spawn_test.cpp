// Goal: spawn runs any function on every rank, with the rank as first argument. Its result keeps
// its type, whether it converts to a value or can only be moved. So do its exceptions.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
namespace asio = boost::asio;

namespace {

struct ruin : std::runtime_error {
  explicit ruin(int floor) : std::runtime_error("ruin"), floor(floor) {}
  int floor;
};

struct measured {
  double length = 0;
  std::string unit;
  operator value() const { return value_tuple{{length, unit}}; }
};

/// A result that the caller cannot make of its value.
struct one_way {
  one_way() = default;
  explicit one_way(const value&) { throw std::invalid_argument("it has no unit"); }
  operator value() const { return 1; }
};

}  // namespace

TEST_CASE("spawn calls a function on every rank with the rank as first argument", "[spawn]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  const auto sum_of_ranks = [](rank_context& context, std::int64_t factor) -> value {
    std::int64_t mine = context.rank() * factor;
    context.collectives().all_reduce({&mine, 1, dtype::i64}, reduction::sum)->wait();
    context.add_to_queue(std::string(100'000, 'x'));  // larger than any pipe
    return mine;
  };
  auto outcome = s.spawn(4, sum_of_ranks, std::int64_t{10});
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(outcome.result == value{60});
  CHECK(outcome.get() == value{60});
  CHECK_THROWS_AS(outcome.get(), internal_error);  // it was moved out
  REQUIRE(outcome.queue.size() == 1);
  CHECK(outcome.queue.front().get_if<std::string>()->size() == 100'000);
}

TEST_CASE("the result of a spawned function keeps its type", "[spawn]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  auto length = s.spawn(
      2,
      [](std::int32_t rank, double scale) {
        return measured{scale * (rank + 1), "m"};
      },
      1.5);
  CHECK(length.result == value_tuple{{1.5, "m"}});
  CHECK(length.get().unit == "m");

  // A move-only type is returned from the lane without a copy.
  auto owned = s.spawn(2, [](rank_context& who) { return std::make_unique<int>(7 + who.rank()); });
  CHECK(owned.result.empty());
  REQUIRE(owned.returned);
  CHECK(*owned.get() == 7);

  std::mutex guard;
  std::set<std::int32_t> came;
  auto nothing = s.spawn(3, [&](std::int32_t rank) {
    const std::lock_guard lock{guard};
    came.insert(rank);
  });
  CHECK_NOTHROW(nothing.get());
  CHECK(came == std::set<std::int32_t>{0, 1, 2});
}

TEST_CASE("an exception of a spawned function keeps its type and there is no result", "[spawn]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  auto failed = s.spawn(3, [](rank_context& context) -> int {
    if (context.rank() == 2) throw ruin(4);
    context.collectives().barrier("never complete")->wait();
    return 1;
  });
  CHECK_FALSE(failed.returned);
  CHECK(failed.failed_with->record.rank == 2);
  CHECK(failed.failed_with->record.hook == "dispatch");
  try {
    failed.get();
    FAIL("nothing was thrown");
  } catch (const ruin& error) {
    CHECK(error.floor == 4);
  }
  // Rank 0 has returned when another rank throws.
  auto late = s.spawn(2, [](rank_context& context) -> int {
    context.collectives().barrier("both")->wait();
    if (context.rank() == 1) throw ruin(1);
    return 1;
  });
  CHECK_FALSE(late.returned);
  CHECK_THROWS_AS(late.get(), ruin);
}

// Rank 0 has returned when rank 1 throws.
TEST_CASE("a function is called again after a restart: what it queued counts once", "[spawn]") {
  struct until_returned final : observer {
    explicit until_returned(std::promise<void>& to) : returned(to) {}
    void on(const observation& what) override {
      const auto* life = std::get_if<seen::lifecycle>(&what);
      if (life && life->event == lifecycle_kind::rank_finished && !std::exchange(known, true))
        returned.set_value();
    }
    std::promise<void>& returned;
    bool known = false;
  };
  asio::io_context loop;
  session s{loop.get_executor()};
  std::promise<void> returned;
  std::atomic<int> calls{0};
  job what;
  what.purpose = stage::call;
  what.options.ranks = 2;
  what.options.elastic.max_restarts = 1;
  what.observers = {[&] { return std::make_unique<until_returned>(returned); }};
  what.recipe = call_recipe([&, once = returned.get_future().share()](rank_context& who) {
    who.add_to_queue(std::int64_t{who.rank()});
    if (who.rank() == 0) return;
    once.wait();
    if (++calls == 1) throw ruin(1);
  });
  const auto outcome = s.run(std::move(what));
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(calls == 2);
  CHECK(outcome.restarts == 1);
  CHECK(outcome.queue == std::vector<value>{value{0}});
}

TEST_CASE("a job that calls a function refuses another purpose", "[spawn]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  std::atomic<int> calls{0};
  job what;
  what.recipe = call_recipe([&calls](std::int32_t) { ++calls; });
  const auto refused = s.run(what);
  REQUIRE(refused.failed_with);
  CHECK_THAT(refused.failed_with->record.what,
             Catch::Contains("purpose is \"train\"") && Catch::Contains("stage::call"));
  CHECK(calls == 0);
}

TEST_CASE("a coroutine awaits a spawned function and a second cancellation interrupts it",
          "[spawn]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  std::optional<std::string> said;
  asio::co_spawn(
      loop,
      [&]() -> asio::awaitable<void> {
        auto outcome = co_await s.async_spawn(
            2, asio::use_awaitable, [](std::int32_t, std::string what) { return what + "!"; },
            std::string{"done"});
        said = outcome.get();
      },
      asio::detached);
  loop.run();
  CHECK(said == "done!");

  asio::cancellation_signal cancel;
  std::optional<call_outcome<int>> ended;
  s.async_spawn(
      1,
      asio::bind_cancellation_slot(cancel.slot(),
                                   [&](call_outcome<int> o) { ended = std::move(o); }),
      [&](rank_context& who) {
        asio::post(loop, [&] {
          cancel.emit(asio::cancellation_type::total);  // a stop does not interrupt a call
          cancel.emit(asio::cancellation_type::total);
        });
        while (!who.interrupted()) std::this_thread::yield();
        return 1;
      });
  loop.restart();
  loop.run();
  REQUIRE(ended);
  CHECK_FALSE(ended->ok());
  CHECK(ended->failed_with->record.what == "cancelled twice");
}

TEST_CASE("two functions of one name in rank_process_options: a user_error names them", "[spawn]") {
  const auto nothing = [](rank_context&, const argument_list&) { return value{}; };
  rank_process_options home;
  for (const auto* name : {"add", "scale", "add"})
    home.functions.push_back({name, nothing, nullptr});
  CHECK_THROWS_WITH(run_rank_if_child(0, nullptr, home), Catch::Contains("has \"add\" twice"));
}

TEST_CASE("the result of a remote function does not fit: the outcome fails and names the function",
          "[spawn]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  const remote_function measuring{"measuring", +[](rank_context&) { return one_way{}; }};
  const auto check = [](call_outcome<one_way> outcome) {
    CHECK(outcome.status == job_outcome::ending::failed);
    CHECK_FALSE(outcome.returned);
    REQUIRE(outcome.failed_with);
    CHECK_THAT(outcome.failed_with->record.what, Catch::Contains("the result of \"measuring\""));
    REQUIRE(outcome.failed_with->record.causes.size() == 1);
    CHECK(outcome.failed_with->record.causes[0].what == "it has no unit");
    CHECK_THROWS_AS(outcome.get(), user_error);
  };
  check(s.spawn(1, measuring));
  int completed = 0;
  s.async_spawn(
      1,
      [&](call_outcome<one_way> outcome) {
        check(std::move(outcome));
        ++completed;
      },
      measuring);
  loop.run();
  CHECK(completed == 1);
}
