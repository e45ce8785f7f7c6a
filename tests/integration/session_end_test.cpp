// Goal: destroying a session while a job runs gives one failure of a type of its own, and leaks no
// thread and no descriptor.
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <filesystem>
#include <future>
#include <iterator>
#include <optional>
#include <thread>

#include "tests/support/integer_learner.hpp"
#include "troupe/ports.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace asio = boost::asio;

namespace {

/// The numbers of threads and open descriptors of this process, counted in /proc. The descriptor
/// that reads /proc/self/fd is counted too, each time.
struct held {
  std::ptrdiff_t threads = entries_of("/proc/self/task");
  std::ptrdiff_t descriptors = entries_of("/proc/self/fd");

  static std::ptrdiff_t entries_of(const char* folder) {
    const std::filesystem::directory_iterator all{folder};
    return std::distance(begin(all), end(all));
  }
  bool within(const held& limit) const {
    return threads <= limit.threads && descriptors <= limit.descriptors;
  }
};

/// A job whose ranks wait in on_fit_start until the test opens the gate.
struct waiting_job {
  explicit waiting_job(session& in, std::optional<job_outcome>& outcome) {
    integer_options options;
    options.can_wait = true;
    options.at_hook = [reached = reached_, open = opened_](const learner_context& c,
                                                           const hook& h) {
      if (c.rank != 0 || name(h) != "on_fit_start") return;
      reached->set_value();
      open.wait();
    };
    job what;
    what.options.ranks = 2;
    what.options.batch_size = 2;
    what.recipe = std::make_shared<integer_recipe>(std::move(options));
    in.async_fit(std::move(what), [&outcome](job_outcome o) { outcome = std::move(o); });
    reached_->get_future().wait();
  }
  void open() { open_.set_value(); }

private:
  std::shared_ptr<std::promise<void>> reached_ = std::make_shared<std::promise<void>>();
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future();
};

job_outcome end_of_a_session_with_a_job() {
  asio::io_context loop;
  std::optional<job_outcome> outcome;
  std::optional<waiting_job> running;
  {
    session s{loop.get_executor()};
    running.emplace(s, outcome);
  }
  running->open();
  loop.run();
  REQUIRE(outcome);
  return *outcome;
}

}  // namespace

TEST_CASE("destroying a session while a job runs fails the job as session_closed", "[session]") {
  const auto outcome = end_of_a_session_with_a_job();
  REQUIRE_FALSE(outcome.ok());
  CHECK(outcome.failed_with->record.kind == failure_kind::session_closed);
  CHECK(outcome.failed_with->record.type == "session_closed");
  CHECK(outcome.failed_with->record.what == "the session was destroyed");
}

TEST_CASE("destroying a session while a job runs leaks no thread and no descriptor", "[session]") {
  const held before;
  for (int round = 0; round < 10; ++round) {
    end_of_a_session_with_a_job();
    // The actor system ends on a thread of its own. A leaked thread fails by the test's time limit.
    while (!held{}.within(before)) std::this_thread::yield();
  }
  CHECK(held{}.within(before));
}

TEST_CASE("an observer that does not return: its session is destroyed without waiting for it",
          "[session]") {
  using namespace std::chrono_literals;
  struct stuck final : observer {
    explicit stuck(std::shared_future<void> until) : opened(std::move(until)) {}
    void on(const observation&) override { opened.wait(); }
    std::shared_future<void> opened;
  };
  const held before;
  std::promise<void> open;
  asio::io_context loop;
  std::optional<session> s{std::in_place, loop.get_executor()};
  job what;
  what.options.ranks = 2;
  what.options.batch_size = 2;
  what.options.time.detect = 10ms;
  what.recipe = std::make_shared<integer_recipe>(integer_options{.can_wait = true});
  what.observers = {
      [opened = open.get_future().share()] { return std::make_unique<stuck>(opened); }};
  const auto outcome = s->run(std::move(what));
  CHECK(outcome.ok());
  CHECK(outcome.survivors == std::vector<std::string>{"observer: still flushing"});
  auto destroyed = std::async(std::launch::async, [&] { s.reset(); });
  CHECK(destroyed.wait_for(10s) == std::future_status::ready);
  open.set_value();
  destroyed.wait();
  while (!held{}.within(before)) std::this_thread::yield();
}

TEST_CASE("two observers that do not return: a job is aborted, and its session is destroyed",
          "[session]") {
  using namespace std::chrono_literals;
  struct stuck final : observer {
    stuck(std::promise<void>& to, std::shared_future<void> until)
        : reached(to), opened(std::move(until)) {}
    void on(const observation&) override {
      if (!std::exchange(known, true)) reached.set_value();
      opened.wait();
    }
    std::promise<void>& reached;
    std::shared_future<void> opened;
    bool known = false;
  };
  const held before;
  std::promise<void> open, reached[2];
  const auto opened = open.get_future().share();
  asio::io_context loop;
  std::optional<session> s{std::in_place, loop.get_executor()};
  job what;
  what.options.ranks = 2;
  what.options.batch_size = 2;
  what.options.max_epochs = 1'000'000'000;
  what.options.time.detect = 100ms;
  what.recipe = std::make_shared<integer_recipe>(integer_options{.can_wait = true});
  for (auto& one : reached)
    what.observers.emplace_back([&one, opened] { return std::make_unique<stuck>(one, opened); });
  auto done = s->async_fit(std::move(what), asio::use_future);
  for (auto& one : reached) one.get_future().wait();
  for (const auto& running : s->jobs()) running.abort("enough");
  auto loops = std::async(std::launch::async, [&] { loop.run(); });
  const bool ended = done.wait_for(20s) == std::future_status::ready;
  CHECK(ended);
  if (ended) CHECK(done.get().survivors.size() == 1);
  s.reset();
  open.set_value();
  loops.wait();
  while (!held{}.within(before)) std::this_thread::yield();
}

TEST_CASE("a job that owns its session: the session ends with the job, on no thread of its own",
          "[session]") {
  struct watching final : observer {
    void on(const observation&) override {}
  };
  const held before;
  asio::io_context loop;
  std::optional<job_outcome> outcome;
  auto s = std::make_shared<session>(loop.get_executor());
  std::promise<void> owns_alone;
  job what;
  what.options.ranks = 2;
  what.options.batch_size = 2;
  integer_options options;
  options.can_wait = true;
  options.at_hook = [owned = owns_alone.get_future().share()](const learner_context&,
                                                              const hook& h) {
    if (name(h) == "on_fit_start") owned.wait();
  };
  what.recipe = std::make_shared<integer_recipe>(std::move(options));
  what.observers = {[s] { return std::make_unique<watching>(); }};
  auto& front = *s;
  front.async_fit(std::move(what), [&outcome](job_outcome o) { outcome = std::move(o); });
  s.reset();
  owns_alone.set_value();
  loop.run();
  REQUIRE(outcome);
  CHECK(outcome->ok());
  while (!held{}.within(before)) std::this_thread::yield();
}

TEST_CASE("a session is destroyed without waiting for another thread that used it", "[session]") {
  asio::io_context loop;
  std::promise<void> ran, destroyed;
  std::optional<session> s{std::in_place, loop.get_executor()};
  std::thread other{[&] {
    CHECK(s->spawn(2, [](std::int32_t rank) { return rank; }).ok());
    ran.set_value();
    destroyed.get_future().wait();
  }};
  ran.get_future().wait();
  s.reset();
  destroyed.set_value();
  other.join();
}
