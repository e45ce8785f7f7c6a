// Goal: ranks in processes of their own have the same outcomes as threads. A process that dies is
// the first cause, with its signal and its hook. No process is left.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "actors/rank_process.hpp"
#include "tests/support/integer_learner.hpp"
#include "tests/support/runner.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/call.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

bool is_child = false;            // this process was started as a rank by this program
int death_signal_at_start = -1;   // before any code of ours ran
bool leaves_when_killed = false;  // main does not return by itself

struct shard_missing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

value scale(rank_context& who, std::int32_t factor, std::string unit, value more) {
  std::int64_t mine = who.rank() * factor;
  who.collectives().all_reduce({&mine, 1, dtype::i64}, reduction::sum)->wait();
  who.add_to_queue("queued");
  return value_tuple{{mine, unit + std::to_string(who.rank()), more, is_child}};
}
void do_nothing(rank_context&) {}
std::int64_t die_once(rank_context& who, std::string file) {
  if (who.rank() == 1 && !fs::exists(file)) {
    std::ofstream{file} << 1;
    ::raise(SIGKILL);
  }
  std::int64_t sum = who.rank();
  who.collectives().all_reduce({&sum, 1, dtype::i64}, reduction::sum)->wait();
  return sum;
}
int throw_something(rank_context& who, std::string which) {
  if (who.rank() == 0) return 1;
  if (which == "user") throw user_error(errc::device, "no such device");
  try {
    throw std::out_of_range("block 3");
  } catch (...) {
    std::throw_with_nested(shard_missing("shard 7"));
  }
}
value return_own_type(rank_context&) { return value_user{std::make_shared<const std::any>(1)}; }

const remote_function scaling{"scaling", scale};
const remote_function doing_nothing{"doing_nothing", do_nothing};
const remote_function dying_once{"dying_once", die_once};
const remote_function throwing{"throwing", throw_something};
const remote_function returning_own_type{"returning_own_type", return_own_type};

trainer_options in_processes(std::int32_t ranks) {
  trainer_options how;
  how.ranks = ranks;
  how.placement = placement_kind::processes;
  return how;
}

// The behaviour of ranks by name; the name is the text of their recipe.
recipe_ptr recipe_named(const std::string& name) {
  integer_options options;
  options.can_wait = true;
  if (name == "no such recipe") throw user_error(errc::bad_configuration, "there is none: " + name);
  if (name == "throws")
    options.at_hook = [](const learner_context& who, const hook& what) {
      if (who.rank != 1 || !what.is<hooks::training_step>()) return;
      if (where(what).step != 2) return;
      try {
        throw std::invalid_argument("block 7");
      } catch (...) {
        std::throw_with_nested(std::runtime_error("disk full"));
      }
    };
  if (name == "own type")
    return call_recipe([](rank_context& r) {
      if (r.rank() == 0) r.add_to_queue(value_user{std::make_shared<const std::any>(1)});
    });
  if (name == "descriptors")
    return call_recipe([](rank_context&) {
      std::int64_t open = 0;
      for (const auto& one : fs::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        const auto to = fs::read_symlink(one, gone).string();
        if (to.find("of-the-parent") != std::string::npos) ++open;
      }
      return value{open};
    });
  if (name == "death signal")
    return call_recipe([](rank_context&) { return value{std::int64_t{death_signal_at_start}}; });
  if (name == "stops once")
    return call_recipe([](rank_context& r) {
      if (r.rank() == 1) ::raise(SIGSTOP);
      return value{std::int64_t{r.rank()}};
    });
  if (name == "slow to leave") leaves_when_killed = true;
  if (name == "never starts")
    while (is_child) ::pause();
  if (name == "endless")
    return call_recipe([](rank_context& r) {
      while (!r.interrupted()) std::this_thread::yield();
    });
  if (name == "deaf")
    return call_recipe([](rank_context&) {
      for (;;) std::this_thread::yield();
    });
  return std::make_shared<integer_recipe>(std::move(options));
}

job processes(const std::string& recipe, std::int32_t ranks, const std::string& by = "auto") {
  job what;
  what.options.ranks = ranks;
  what.options.batch_size = 2;
  what.options.max_epochs = 2;
  what.options.placement = placement_kind::processes;
  what.options.communicator = own_name{by};
  what.recipe_text = recipe;
  what.recipe = recipe_named(recipe == "no such recipe" ? "" : recipe);
  return what;
}

job_outcome run(job what, ports world = local_ports()) {
  asio::io_context loop;
  session s{loop.get_executor(), std::move(world)};
  return s.run(std::move(what));
}

// Children of this process, zombies included. With `in_state`: those in this state of /proc.
std::vector<int> children(char in_state = 0) {
  std::vector<int> found;
  for (const auto& one : fs::directory_iterator("/proc")) {
    const auto name = one.path().filename().string();
    int pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc{}) continue;
    std::ifstream in{one.path() / "stat"};
    const std::string all{std::istreambuf_iterator<char>{in}, {}};
    const auto end = all.rfind(')');
    if (end == std::string::npos) continue;
    int parent = 0;
    char state = 0;
    std::istringstream{all.substr(end + 1)} >> state >> parent;
    if (parent == ::getpid() && (in_state == 0 || in_state == state)) found.push_back(pid);
  }
  return found;
}

// A rendezvous of the program's own that gives nothing where it is joined.
struct empty_kind : rendezvous_kind {
  explicit empty_kind(std::shared_ptr<rendezvous> where) : where_(std::move(where)) {}
  std::string_view name() const override { return "empty"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options&) const override { return where_; }
  std::shared_ptr<communicator_backend> join(const std::string&,
                                             const std::vector<int>&) const override {
    return nullptr;
  }
  std::shared_ptr<rendezvous> where_;
};
ports ports_of_rank() {
  if (std::getenv("TROUPE_TEST_NO_PORTS")) throw std::runtime_error("no ports here");
  ports world = local_ports();
  return world.use(std::make_shared<empty_kind>(nullptr)), world;
}

fault_drill drill(fault_drill::kind kind, const std::string& hook) {
  fault_drill d;
  d.what = kind;
  d.rank = 1;
  d.hook = hook;
  d.step = 2;
  return d;
}

}  // namespace

TEST_CASE("ranks in processes train to the weights of the formula") {
  const auto [ranks, by] = GENERATE(table<std::int32_t, std::string>(
      {{1, "shm"}, {2, "shm"}, {3, "shm"}, {1, "tcp"}, {2, "tcp"}, {3, "tcp"}}));
  INFO(ranks << " ranks by " << by);
  const auto what = processes("integers", ranks, by);
  const auto outcome = run(what);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(outcome.status == job_outcome::ending::finished);
  CHECK(integers_of(outcome.result) ==
        expected_integers({}, ranks, what.options, outcome.loop.steps));
  CHECK(outcome.last.contains("train/loss"));
  CHECK(outcome.figures.seconds_to_first_step > 0);
  CHECK(outcome.survivors.empty());
  CHECK(outcome.late.empty());
  CHECK(children().empty());
}

TEST_CASE("an exception in a rank's process reaches the caller as a record") {
  const auto outcome = run(processes("throws", 3));
  REQUIRE(outcome.failed_with);
  const auto& f = outcome.failed_with->record;
  CHECK(f.type == "std::runtime_error");
  CHECK(f.what == "disk full");
  REQUIRE(f.causes.size() == 1);
  CHECK(f.causes[0].what == "block 7");
  CHECK(f.rank == 1);
  CHECK(f.hook == "training_step");
  CHECK(f.step == 2);
  CHECK_THROWS_AS(outcome.rethrow(), std::runtime_error);
  CHECK(children().empty());
}

TEST_CASE("a process that dies is the first cause with its signal and hook and step") {
  using kind = fault_drill::kind;
  const auto [how, type, signal] =
      GENERATE(table<kind, std::string, std::string>({{kind::kill, "signal", "SIGKILL"},
                                                      {kind::abort, "signal", "SIGABRT"},
                                                      {kind::segv, "signal", "SIGSEGV"},
                                                      {kind::exit, "exit", ""}}));
  INFO(type << " " << signal);
  auto what = processes("integers", 3);
  what.options.faults = {drill(how, "backward")};
  const auto outcome = run(what);
  REQUIRE(outcome.failed_with);
  const auto& f = outcome.failed_with->record;
  CHECK(f.type == type);
  CHECK(f.signal == signal);
  CHECK(f.rank == 1);
  CHECK(f.hook == "backward");
  CHECK(f.step == 2);
  CHECK(f.generation == 1);
  CHECK(outcome.survivors.empty());
  CHECK(children().empty());
}

TEST_CASE("a process that is killed during set-up is named") {
  auto what = processes("integers", 2);
  what.options.faults = {drill(fault_drill::kind::kill, "setup_environment")};
  what.options.faults.front().step = undefined;
  const auto outcome = run(what);
  REQUIRE(outcome.failed_with);
  CHECK(outcome.failed_with->record.signal == "SIGKILL");
  CHECK(outcome.failed_with->record.rank == 1);
  CHECK(children().empty());
}

TEST_CASE("a recipe that cannot be made fails its rank with the user's error") {
  const auto outcome = run(processes("no such recipe", 2));
  REQUIRE(outcome.failed_with);
  CHECK(outcome.failed_with->record.type == "troupe::user_error");
  CHECK_THROWS_AS(outcome.rethrow(), user_error);
}

TEST_CASE("sending a value of a user's type fails the rank with the reason") {
  auto what = processes("own type", 2);
  what.purpose = stage::call;
  const auto outcome = run(what);
  REQUIRE(outcome.failed_with);
  CHECK(outcome.failed_with->record.what.find("cannot be sent from its rank's process") !=
        std::string::npos);
}

TEST_CASE("a named function runs in ranks' processes with its arguments", "[spawn]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  auto outcome = s.spawn(in_processes(3), scaling, 10, "m", value{value_list{{1, "two"}}});
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(outcome.get() == value_tuple{{30, "m0", value_list{{1, "two"}}, true}});
  REQUIRE(outcome.queue.size() == 1);
  CHECK(outcome.queue.front() == value{"queued"});
  CHECK(children().empty());

  // The same call on threads: only the process differs.
  auto near = s.spawn(3, scaling, 10, "m", value{});
  CHECK(near.get() == value_tuple{{30, "m0", value{}, false}});

  auto nothing = s.spawn(in_processes(2), doing_nothing);
  CHECK_NOTHROW(nothing.get());
}

TEST_CASE("a function in a rank's process goes on after a kill and gives the same result",
          "[spawn]") {
  temporary_folder folder;
  asio::io_context loop;
  session s{loop.get_executor()};
  auto how = in_processes(2);
  how.elastic.max_restarts = 1;
  auto outcome = s.spawn(how, dying_once, (folder.path() / "died").string());
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(outcome.get() == 1);
  CHECK(outcome.restarts == 1);
}

TEST_CASE("an exception of a function in a rank's process has its own type", "[spawn]") {
  auto world = local_ports();
  world.exceptions.add<shard_missing>();
  asio::io_context loop;
  session s{loop.get_executor(), world};
  auto outcome = s.spawn(in_processes(2), throwing, "own");
  CHECK_FALSE(outcome.returned);
  CHECK(outcome.failed_with->record.rank == 1);
  try {
    outcome.get();
    FAIL("nothing was thrown");
  } catch (const shard_missing& error) {
    CHECK(std::string{error.what()} == "shard 7");
    try {
      std::rethrow_if_nested(error);
      FAIL("there is no cause");
    } catch (const std::out_of_range& cause) {
      CHECK(std::string{cause.what()} == "block 3");
    }
  }
  CHECK_THROWS_AS(s.spawn(in_processes(2), throwing, "user").get(), user_error);

  session plain{loop.get_executor()};
  auto unknown = plain.spawn(in_processes(2), throwing, "own");
  CHECK_THROWS_WITH(unknown.get(), Catch::StartsWith("rank 1 failed in dispatch at step 0: ") &&
                                       Catch::EndsWith("shard_missing: shard 7; caused by "
                                                       "std::out_of_range: block 3"));
}

TEST_CASE("a call that a rank's process cannot make is refused with the fix", "[spawn]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  const auto why = [](const auto& outcome) {
    REQUIRE(outcome.failed_with);
    return outcome.failed_with->record.what;
  };
  CHECK_THAT(why(s.spawn(in_processes(2), [](std::int32_t rank) { return rank; })),
             Catch::Contains("make it a troupe::remote_function"));
  const remote_function unlisted{"unlisted", +[](rank_context&) { return value{1}; }};
  CHECK_THAT(why(s.spawn(in_processes(2), unlisted)),
             Catch::Contains("does not know the function \"unlisted\"") &&
                 Catch::Contains("rank_process_options::functions, which holds \"scaling\""));
  const value own = value_user{std::make_shared<const std::any>(1)};
  CHECK_THAT(why(s.spawn(in_processes(2), scaling, 1, "", own)),
             Catch::Contains("an argument of function \"scaling\" cannot be sent"));
  CHECK_THAT(why(s.spawn(in_processes(2), returning_own_type)),
             Catch::Contains("the result of \"returning_own_type\" cannot be sent"));
  const remote_function other_type{
      "scaling", +[](rank_context&, std::string, std::string, value) { return value{}; }};
  CHECK_THAT(why(s.spawn(in_processes(2), other_type, "ten", "", value{})),
             Catch::Contains("the function \"scaling\": argument 1: expected an integer"));
  CHECK_THROWS_AS((remote_function{"", +[](rank_context&) { return value{}; }}), user_error);
}

TEST_CASE("observers learn which collectives each rank calls, from threads and processes") {
  struct watch final : observer {
    explicit watch(std::shared_ptr<std::vector<seen::collective>> to) : to_(std::move(to)) {}
    bool wants_hooks() const override { return true; }
    void on(const observation& what) override {
      if (const auto* call = std::get_if<seen::collective>(&what)) to_->push_back(*call);
    }
    std::shared_ptr<std::vector<seen::collective>> to_;
  };
  const bool far = GENERATE(false, true);
  auto what = processes("integers", 2);
  if (!far) {
    what.options.placement = placement_kind::threads;
    what.recipe = recipe_named("integers");
  }
  const auto seen_here = std::make_shared<std::vector<seen::collective>>();
  what.observers = {[=] { return std::make_unique<watch>(seen_here); }};
  const auto outcome = run(what);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  std::map<std::uint64_t, std::vector<seen::collective>> by_number;
  for (const auto& call : *seen_here) by_number[call.number].push_back(call);
  REQUIRE(by_number.size() > static_cast<std::size_t>(outcome.loop.steps));
  for (const auto& [number, calls] : by_number) {
    INFO(number);
    REQUIRE(calls.size() == 2);
    CHECK(calls[0].rank != calls[1].rank);
    CHECK(calls[0].kind == calls[1].kind);
    CHECK(calls[0].bytes == calls[1].bytes);
    CHECK(calls[0].label == calls[1].label);
    CHECK(calls[0].generation == 1);
    CHECK_FALSE(calls[0].failed);
    // They were in it at the same time.
    CHECK(calls[0].began <= calls[1].began + calls[1].took);
    CHECK(calls[1].began <= calls[0].began + calls[0].took);
  }
}

TEST_CASE("a communicator that cannot connect processes is refused") {
  const auto outcome = run(processes("integers", 2, "inproc"));
  REQUIRE(outcome.failed_with);
  CHECK(outcome.failed_with->record.what.find("auto, shm, tcp") != std::string::npos);
}

TEST_CASE("a rank's process inherits no descriptor of the program") {
  temporary_folder folder;
  // Not closed on exec, as descriptors of other libraries may be.
  const int open = ::open((folder.path() / "of-the-parent").c_str(), O_CREAT | O_RDWR, 0600);
  REQUIRE(open >= 0);
  auto what = processes("descriptors", 1);
  what.purpose = stage::call;
  const auto outcome = run(what);
  ::close(open);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(*outcome.result.get_if<std::int64_t>() == 0);
}

TEST_CASE("a stop ends processes at a step boundary that all ranks agree on") {
  asio::io_context loop;
  session s{loop.get_executor()};
  asio::cancellation_signal stop;
  auto what = processes("integers", 2);
  what.options.max_epochs = 1'000'000;
  std::atomic<int> steps{0};
  what.trace = [&](std::int32_t, const hook& h) {
    if (h.is<hooks::optimizer_step>() && ++steps == 20)
      asio::post(loop, [&] { stop.emit(asio::cancellation_type::partial); });
  };
  std::optional<job_outcome> outcome;
  s.async_fit(what, asio::bind_cancellation_slot(stop.slot(),
                                                 [&](job_outcome o) { outcome = std::move(o); }));
  loop.run();
  REQUIRE(outcome);
  if (!outcome->ok()) FAIL(render(outcome->failed_with->record));
  CHECK(outcome->status == job_outcome::ending::stopped);
  CHECK(integers_of(outcome->result) ==
        expected_integers({}, 2, what.options, outcome->loop.steps));
  CHECK(children().empty());
}

TEST_CASE("destroying a session ends its processes even if they do not respond") {
  const auto recipe = GENERATE(as<std::string>{}, "endless", "deaf");
  INFO(recipe);
  asio::io_context loop;
  std::optional<job_outcome> outcome;
  {
    session s{loop.get_executor()};
    auto what = processes(recipe, 2);
    what.purpose = stage::call;
    std::atomic<int> there{0};
    what.trace = [&](std::int32_t, const hook& h) {
      if (h.is<hooks::dispatch>()) ++there;
    };
    s.async_run(what, [&](job_outcome o) { outcome = std::move(o); });
    while (there < 2) std::this_thread::yield();
  }
  loop.run();
  REQUIRE(outcome);
  CHECK(outcome->failed_with);
  while (!children().empty()) std::this_thread::yield();
}

TEST_CASE("a rank's process dies with its parent from its first instruction on") {
  auto what = processes("death signal", 1);
  what.purpose = stage::call;
  const auto outcome = run(what);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(*outcome.result.get_if<std::int64_t>() == SIGKILL);
}

TEST_CASE("a process that was started as a rank refuses to start a job") {
  const auto own = fs::read_symlink("/proc/self/exe").string();
  CHECK(std::system(("'" + own + "' --troupe-rank and-starts-a-job").c_str()) == 0);
}

TEST_CASE("a rank that is stopped by SIGSTOP is named and its process is killed") {
  auto what = processes("integers", 2);
  what.options.faults = {drill(fault_drill::kind::stop, "backward")};
  const auto outcome = run(what);
  REQUIRE(outcome.failed_with);
  const auto& f = outcome.failed_with->record;
  CHECK(f.type == "deadline");
  CHECK(f.rank == 1);
  CHECK(f.hook == "backward");
  CHECK(f.step == 2);
  CHECK_THAT(f.what, Catch::Contains("was stopped (SIGSTOP) for 2.0 s"));
  CHECK(f.signal == "SIGSTOP");
  CHECK(outcome.survivors.empty());
  CHECK(children().empty());
}

TEST_CASE("a rank that is stopped briefly continues") {
  auto what = processes("stops once", 2);
  what.purpose = stage::call;
  asio::io_context loop;
  session s{loop.get_executor()};
  std::optional<job_outcome> outcome;
  s.async_run(what, [&](job_outcome o) { outcome = std::move(o); });
  std::vector<int> stopped;
  while (stopped.empty()) stopped = children('T');
  for (const auto one : stopped) ::kill(one, SIGCONT);
  loop.run();
  REQUIRE(outcome);
  if (!outcome->ok()) FAIL(render(outcome->failed_with->record));
  CHECK(outcome->survivors.empty());
}

TEST_CASE("a process that exits slowly after its rank finished is not a failure") {
  const auto outcome = run(processes("slow to leave", 2));
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  for (const auto& late : outcome.late) UNSCOPED_INFO(render(late));
  CHECK(outcome.late.empty());
  CHECK(outcome.survivors.empty());
  CHECK(children().empty());
}

TEST_CASE("a process killed while all are starting ends the job without a timeout") {
  auto what = processes("never starts", 3);
  asio::io_context loop;
  session s{loop.get_executor()};
  std::optional<job_outcome> outcome;
  s.async_run(what, [&](job_outcome o) { outcome = std::move(o); });
  std::vector<int> there;
  while (there.size() < 3) there = children();
  ::kill(there.front(), SIGKILL);
  loop.run();
  REQUIRE(outcome);
  REQUIRE(outcome->failed_with);
  CHECK(outcome->failed_with->record.signal == "SIGKILL");
  CHECK(outcome->failed_with->record.others.empty());
  CHECK(outcome->survivors.empty());
  CHECK(children().empty());
}

TEST_CASE("a rank's process that makes another recipe than the job's is refused") {
  struct known : integer_recipe {
    known() : integer_recipe(integer_options{}) {}
    std::string identity() const override { return "integers(4)"; }
  };
  const rank_process_options home{[] { return std::make_shared<known>(); }};
  CHECK(home.recipe("integers(4)")->identity() == "integers(4)");
  CHECK_THROWS_WITH(home.recipe("integers(8)"),
                    Catch::Contains("the job's recipe is integers(8)") &&
                        Catch::Contains("troupe::run_rank_if_child") &&
                        Catch::Contains("makes integers(4)"));
}

TEST_CASE("parts of the program's own that fail between processes: the failure names them") {
  auto world = local_ports();
  world.use(std::make_shared<empty_kind>(nullptr));
  CHECK_THAT(run(processes("integers", 2, "empty"), world).failed_with->record.what,
             Catch::Contains("\"empty\" arranged none"));
  world.use(std::make_shared<empty_kind>(std::make_shared<rendezvous>()));
  CHECK_THAT(run(processes("integers", 2, "empty"), world).failed_with->record.what,
             Catch::Contains("\"empty\" joined no communicator"));
  auto traced = processes("integers", 2);
  traced.trace = [](std::int32_t, const hook&) { throw 7; };
  CHECK_THAT(run(traced).failed_with->record.what, Catch::Contains("the job's trace threw int"));
  ::setenv("TROUPE_TEST_NO_PORTS", "1", 1);
  CHECK(run(processes("integers", 2)).failed_with->record.what == "no ports here");
  ::unsetenv("TROUPE_TEST_NO_PORTS");
  CHECK(children().empty());
}

TEST_CASE("arguments that only look like a rank's are refused") {
  const std::vector<const char*> none{"program", "fit", "--ranks"};
  CHECK_FALSE(run_rank_if_child(3, none.data(), {}));
  const std::vector<const char*> few{"program", "--troupe-rank", "1"};
  CHECK_THROWS_AS(run_rank_if_child(3, few.data(), {}), internal_error);
  const std::vector<const char*> odd{"program", "--troupe-rank", "x", "1", "1", "1", "1", "0"};
  CHECK_THROWS_AS(run_rank_if_child(8, odd.data(), {}), internal_error);
}

int main(int count, char** arguments) {
  ::prctl(PR_GET_PDEATHSIG, &death_signal_at_start);
  is_child = count > 1 && std::string_view{arguments[1]} == "--troupe-rank";
  if (count > 2 && std::string_view{arguments[2]} == "and-starts-a-job") {
    auto what = processes("integers", 2);
    what.options.placement = placement_kind::threads;
    const auto outcome = run(what);
    return outcome.failed_with && outcome.failed_with->record.code == errc::bad_configuration ? 0
                                                                                              : 1;
  }
  rank_process_options home{recipe_named, ports_of_rank};
  home.functions = {scaling, doing_nothing, dying_once, throwing, returning_own_type};
  if (const auto code = run_rank_if_child(count, arguments, home)) {
    while (leaves_when_killed) ::pause();
    return *code;
  }
  return run_tests(count, arguments);
}
