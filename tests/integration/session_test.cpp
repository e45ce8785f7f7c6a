// Goal: jobs on real threads through the asynchronous interface. Every outcome reaches the caller,
// nothing is leaked, two jobs are independent, and a hook that hangs is named without waiting for
// it.
#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/system_executor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <condition_variable>
#include <future>
#include <mutex>

#include "backends/entropy.hpp"
#include "tests/support/integer_learner.hpp"
#include "troupe/ports.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

job integer_job(integer_options options, std::int32_t ranks) {
  options.can_wait = true;
  job what;
  what.options.ranks = ranks;
  what.options.batch_size = 2;
  what.options.max_epochs = 2;
  what.recipe = std::make_shared<integer_recipe>(std::move(options));
  return what;
}

// A gate at which user code waits. The test opens it, so that no thread is left at the end.
class gate {
public:
  void wait() {
    std::unique_lock lock(guard_);
    reached_ = true;
    news_.notify_all();
    news_.wait(lock, [&] { return open_; });
  }
  void wait_until_reached() {
    std::unique_lock lock(guard_);
    news_.wait(lock, [&] { return reached_; });
  }
  void open() {
    const std::lock_guard lock(guard_);
    open_ = true;
    news_.notify_all();
  }

private:
  std::mutex guard_;
  std::condition_variable news_;
  bool reached_ = false;
  bool open_ = false;
};

}  // namespace

TEST_CASE("a port that each job needs and that is null: the job is refused with its name",
          "[session]") {
  struct lack {
    std::function<void(ports&)> how;
    std::string why;
  };
  const auto [how, why] = GENERATE(
      lack{[](ports& p) { p = ports{}; }, "is null"},
      lack{[](ports& p) { p.lanes = nullptr; }, "ports::lanes"},
      lack{[](ports& p) { p.random = nullptr; }, "ports::random"},
      lack{[](ports& p) { p.now = nullptr; }, "ports::now"},
      lack{[](ports& p) { p.communicators.insert(p.communicators.begin(), nullptr); },
           "ports::communicators has a null entry"},
      lack{[](ports& p) { p.rendezvous_kinds.push_back(nullptr); }, "ports::rendezvous_kinds"},
      lack{[](ports& p) { p.communicators.clear(); }, "the ports have none"});
  auto world = local_ports();
  how(world);
  session s{asio::system_executor{}, world};
  const auto outcome = s.run(integer_job({}, 2));
  REQUIRE_FALSE(outcome.ok());
  CHECK_THAT(outcome.failed_with->record.what, Catch::Contains(why));
  CHECK_THROWS_AS(world.use(std::shared_ptr<communicator_backend>{}), user_error);
  CHECK_THROWS_AS(world.use(std::shared_ptr<rendezvous_kind>{}), user_error);
}

TEST_CASE(
    "a communicator or a recipe of the program's own that makes none: a failure that names it",
    "[session]") {
  struct opens_none : communicator_backend {
    std::string_view name() const override { return "pigeons"; }
    std::string unusable() const override { return {}; }
    std::shared_ptr<communicator> open(const group_description&) override { return nullptr; }
  };
  struct makes_none : learner_recipe {
    std::unique_ptr<learner> make(const learner_context&) const override { return nullptr; }
  };
  auto world = local_ports();
  world.use(std::make_shared<opens_none>());
  session s{asio::system_executor{}, world};
  auto what = integer_job({}, 2);
  what.options.communicator = own_name{"pigeons"};
  const auto unopened = s.run(what);
  REQUIRE_FALSE(unopened.ok());
  CHECK(unopened.failed_with->record.code == errc::device);
  CHECK_THAT(unopened.failed_with->record.what, Catch::Contains("\"pigeons\" opened none"));
  what = integer_job({}, 2);
  what.recipe = std::make_shared<makes_none>();
  const auto unmade = s.run(what);
  REQUIRE_FALSE(unmade.ok());
  CHECK(unmade.failed_with->record.code == errc::bad_usage);
  CHECK_THAT(unmade.failed_with->record.what, Catch::Contains("the recipe made no learner"));
}

TEST_CASE("a port that throws in the supervisor: the failure has its text", "[session]") {
  struct drawn_up final : entropy {  // the job's number, and then nothing
    bool first = true;
    std::uint64_t draw() override {
      if (std::exchange(first, false)) return 1;
      throw std::runtime_error("no entropy is left");
    }
  };
  auto world = local_ports();
  world.random = std::make_shared<drawn_up>();
  session s{asio::system_executor{}, world};
  const auto outcome = s.run(integer_job({}, 2));
  REQUIRE_FALSE(outcome.ok());
  CHECK(outcome.failed_with->record.what ==
        "the supervisor ended before its job: std::runtime_error: no entropy is left");
  CHECK_THROWS_AS(outcome.rethrow(), internal_error);
}

TEST_CASE("a coroutine awaits a fit and resumes on its own thread", "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  std::optional<job_outcome> outcome;
  bool initiating = true;
  asio::co_spawn(
      loop,
      [&]() -> asio::awaitable<void> {
        outcome = co_await s.async_fit(integer_job({}, 2), asio::use_awaitable);
        CHECK_FALSE(initiating);
      },
      asio::detached);
  initiating = false;
  loop.run();
  REQUIRE(outcome);
  if (!outcome->ok()) FAIL(render(outcome->failed_with->record));
  CHECK(outcome->loop.samples == 48);
  CHECK(outcome->weights->model.front().name == "weights");
}

TEST_CASE("two jobs in one session are independent", "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  integer_options bad;
  bad.at_hook = [](const learner_context& c, const hook& h) {
    if (c.rank == 1 && name(h) == "backward") throw std::domain_error("disk full");
  };
  std::optional<job_outcome> good_outcome, bad_outcome;
  s.async_fit(integer_job({}, 4), [&](job_outcome o) { good_outcome = std::move(o); });
  s.async_fit(integer_job(bad, 3), [&](job_outcome o) { bad_outcome = std::move(o); });
  loop.run();
  REQUIRE(good_outcome->ok());
  REQUIRE_FALSE(bad_outcome->ok());
  CHECK_THROWS_AS(bad_outcome->rethrow(), std::domain_error);
  CHECK(bad_outcome->failed_with->record.rank == 1);
}

TEST_CASE("a cancellation slot stops the run at a step boundary", "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  asio::cancellation_signal cancel;
  integer_options options;
  options.samples = 100'000;
  std::atomic<bool> asked = false;
  options.at_hook = [&](const learner_context& c, const hook& h) {
    if (c.rank == 0 && name(h) == "optimizer_step" && !asked.exchange(true))
      asio::post(loop, [&] { cancel.emit(asio::cancellation_type::terminal); });
  };
  auto what = integer_job(options, 2);
  what.options.max_epochs = 1000;
  std::optional<job_outcome> outcome;
  s.async_fit(std::move(what), asio::bind_cancellation_slot(
                                   cancel.slot(), [&](job_outcome o) { outcome = std::move(o); }));
  loop.run();
  REQUIRE(outcome->status == job_outcome::ending::stopped);
  CHECK(outcome->why == stop_reason::caller);
  CHECK(outcome->loop.steps > 0);
  CHECK(outcome->weights->loop.steps == outcome->loop.steps);
}

TEST_CASE("a cancellation while the job is launched stops it", "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  asio::cancellation_signal cancel;
  auto what = integer_job({}, 2);
  what.options.max_epochs = 1'000'000'000;
  what.started = [&](const job_handle&) { cancel.emit(asio::cancellation_type::terminal); };
  std::optional<job_outcome> outcome;
  s.async_fit(std::move(what), asio::bind_cancellation_slot(
                                   cancel.slot(), [&](job_outcome o) { outcome = std::move(o); }));
  loop.run();
  CHECK(outcome->status == job_outcome::ending::stopped);
}

TEST_CASE("a future can be used as completion token", "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  auto future = s.async_fit(integer_job({}, 1), asio::use_future);
  loop.run();
  CHECK(future.get().ok());
}

TEST_CASE("user errors are returned as the failure of the outcome", "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  auto what = integer_job({}, 0);
  CHECK_THROWS_AS(s.run(what).rethrow(), user_error);
  what = integer_job({}, 2);
  what.options.communicator = own_name{"pigeons"};
  const auto outcome = s.run(what);
  CHECK(outcome.failed_with->record.what ==
        "there is no communicator \"pigeons\"; there are: auto, inproc, nccl, mpi");
  what = integer_job({}, 2);
  what.options.time.detect = 0ns;
  CHECK_THROWS_AS(s.run(what).rethrow(), user_error);
}

TEST_CASE("elastic options that would have no effect: the job is refused with the fix",
          "[session]") {
  session s{asio::system_executor{}};
  auto what = integer_job({}, 2);
  what.options.elastic.max_restarts = -1;
  const auto negative = s.run(what);
  REQUIRE_FALSE(negative.ok());
  CHECK(negative.failed_with->record.code == errc::bad_configuration);
  CHECK_THAT(negative.failed_with->record.what, Catch::Contains("elastic.max_restarts is -1"));
  what.options.elastic = {.spares = 1};
  what.options.placement = placement_kind::processes;
  const auto unused = s.run(what);
  REQUIRE_FALSE(unused.ok());
  CHECK_THAT(unused.failed_with->record.what, Catch::Contains("elastic.spares is 1") &&
                                                  Catch::Contains("raise elastic.max_restarts"));
}

TEST_CASE("a hook that hangs is named and the job ends without waiting for it", "[session]") {
  auto stuck = std::make_shared<gate>();
  integer_options options;
  options.at_hook = [stuck](const learner_context& c, const hook& h) {
    if (c.rank == 1 && name(h) == "on_train_batch_start") stuck->wait();
  };
  auto what = integer_job(options, 3);
  what.options.time.detect = 100ms;
  what.options.time.hook_limit = 1s;
  asio::io_context loop;
  session s{loop.get_executor()};
  const auto outcome = s.run(what);
  REQUIRE_FALSE(outcome.ok());
  const auto& first = outcome.failed_with->record;
  CHECK(first.type == "deadline");
  CHECK(first.rank == 1);
  CHECK(first.hook == "on_train_batch_start");
  REQUIRE(outcome.survivors.size() == 1);
  CHECK(outcome.survivors[0].find("rank 1: on_train_batch_start for ") == 0);
  stuck->open();
}

TEST_CASE("a learner that is made or bound for ever: the rank is named at the limit of a hook",
          "[session]") {
  struct own_recipe final : learner_recipe {
    struct own final : integer_learner {
      own(const learner_context& context, gate* at_bind)
          : integer_learner(context, {.can_wait = true}), at_bind(at_bind) {}
      void bind(std::shared_ptr<communicator> world, generation_id generation) override {
        if (at_bind) at_bind->wait();
        integer_learner::bind(std::move(world), generation);
      }
      gate* at_bind;
    };
    own_recipe(std::string in, std::shared_ptr<gate> at) : in(std::move(in)), at(std::move(at)) {}
    std::unique_ptr<learner> make(const learner_context& context) const override {
      if (context.rank == 1 && in == "make") at->wait();
      return std::make_unique<own>(context, context.rank == 1 && in == "bind" ? at.get() : nullptr);
    }
    std::string in;
    std::shared_ptr<gate> at;
  };
  const std::string in = GENERATE("make", "bind");
  auto stuck = std::make_shared<gate>();
  auto what = integer_job({}, 3);
  what.recipe = std::make_shared<own_recipe>(in, stuck);
  what.options.time.detect = 100ms;
  what.options.time.hook_limit = 1s;
  asio::io_context loop;
  session s{loop.get_executor()};
  const auto outcome = s.run(what);
  REQUIRE_FALSE(outcome.ok());
  const auto& first = outcome.failed_with->record;
  CHECK(first.kind == failure_kind::deadline);
  CHECK(first.rank == 1);
  CHECK(first.hook == in);
  CHECK_THAT(first.what, Catch::StartsWith(in + " has been running for "));
  stuck->open();
}

TEST_CASE("a job without files fails: it does not wait for a hook of rank 0", "[session]") {
  auto stuck = std::make_shared<gate>();
  integer_options options;
  options.at_hook = [stuck](const learner_context& c, const hook& h) {
    if (name(h) != "on_train_batch_start") return;
    if (c.rank == 0) stuck->wait();
    stuck->wait_until_reached();
    throw std::domain_error("disk full");
  };
  auto what = integer_job(options, 2);
  what.options.time.detect = 20ms;
  what.options.time.hook_limit = 1h;
  what.options.checkpoint.on_exception = true;
  session s{asio::system_executor{}};
  auto done = s.async_fit(std::move(what), asio::use_future);
  const bool ended = done.wait_for(20s) == std::future_status::ready;
  CHECK(ended);
  stuck->open();
  CHECK(done.get().failed_with->record.what == "disk full");
}

TEST_CASE("destroying a session with a running job, or assigning to it, ends the job at once",
          "[session]") {
  const bool assigned = GENERATE(false, true);
  asio::io_context loop;
  auto reached = std::make_shared<gate>();
  std::optional<job_outcome> outcome;
  {
    session s{loop.get_executor()};
    integer_options options;
    options.at_hook = [reached](const learner_context& c, const hook& h) {
      if (c.rank == 0 && name(h) == "on_fit_start") reached->wait();
    };
    s.async_fit(integer_job(options, 2), [&](job_outcome o) { outcome = std::move(o); });
    reached->wait_until_reached();
    if (assigned) {
      s = session{loop.get_executor()};
      reached->open();
      loop.run();
      REQUIRE(outcome);
    }
  }
  reached->open();
  loop.run();
  REQUIRE(outcome);
  REQUIRE_FALSE(outcome->ok());
  CHECK(outcome->failed_with->record.kind == failure_kind::session_closed);
  CHECK(outcome->failed_with->record.type == "session_closed");
}

TEST_CASE("no actor is left after any kind of end", "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  for (int round = 0; round < 20; ++round) {
    integer_options options;
    options.at_hook = [round](const learner_context& c, const hook& h) {
      if (round % 2 && c.rank == round % 3 && name(h) == "training_step") throw 42;
    };
    const auto outcome = s.run(integer_job(options, 3));
    CHECK(outcome.ok() == (round % 2 == 0));
    CHECK(s.actors_running() <= 1);  // the supervisor itself may still be terminating
  }
}

TEST_CASE("a session without threads is refused", "[session]") {
  asio::io_context loop;
  CHECK_THROWS_WITH((session{loop.get_executor(), local_ports(), {.threads = 0}}),
                    Catch::Matchers::Contains("session_options::threads is 0"));
}

TEST_CASE("a job without a recipe: the outcome's failure is a user_error", "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  CHECK_THROWS_AS(s.run(job{}).rethrow(), user_error);
}

TEST_CASE("an observer factory that makes none: the job goes on, and a late failure says so",
          "[session]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  auto what = integer_job({}, 2);
  what.observers = {[] { return std::unique_ptr<observer>{}; }};
  const auto outcome = s.run(std::move(what));
  CHECK(outcome.ok());
  REQUIRE(outcome.late.size() == 1);
  CHECK(outcome.late[0].hook == "observer");
  CHECK_THAT(outcome.late[0].what, Catch::Matchers::Contains("made no observer"));
}
