// Goal: the fault scenarios of docs/scenarios.md that need a rank's process with a behaviour of its
// own: it ends in one of many ways, it hangs, it has no memory, or it has gigabytes of it.
// Method: this program is the rank's process, too. The name of its recipe says what it does.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <future>
#include <mutex>
#include <thread>

#include "actors/rank_process.hpp"
#include "backends/forwarding_communicator.hpp"
#include "backends/remote_trace.hpp"
#include "backends/simulated/modular_learner.hpp"
#include "tests/support/runner.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/call.hpp"
#include "troupe/observer.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace asio = boost::asio;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr std::int32_t world = 3;
constexpr std::int64_t steps = 8;
constexpr std::int32_t victim = 1;

// Steady clock, the same in all processes.
std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// True in the first process that asks. Without a folder in every process.
bool first_time(const std::string& folder, const std::string& what = "done") {
  if (folder.empty()) return true;
  const int file = ::open((folder + "/" + what).c_str(), O_CREAT | O_EXCL, 0600);
  if (file >= 0) ::close(file);
  return file >= 0;
}

// As deep as any stack of a thread.
[[gnu::noinline]] std::size_t nested(std::size_t depth) {
  volatile char frame[4096];
  frame[depth % sizeof frame] = 1;
  return depth == 0 ? 0 : nested(depth - 1) + static_cast<std::size_t>(frame[0]);
}

// The limit is lifted again, because the job goes on in this process.
void without_memory() {
  rlimit before{};
  ::getrlimit(RLIMIT_AS, &before);
  const rlimit least{std::size_t{1} << 30, before.rlim_max};
  ::setrlimit(RLIMIT_AS, &least);
  try {
    const std::vector<char> too_much(std::size_t{4} << 30);
  } catch (const std::bad_alloc&) {
    ::setrlimit(RLIMIT_AS, &before);
    throw;
  }
}

void fail_as(const std::string& how) {
  if (how == "overflows its stack") nested(std::size_t{1} << 30);
  if (how == "calls terminate") std::terminate();
  if (how == "exits with 0") ::_exit(0);
  if (how == "exits in order with 0") std::exit(0);
  if (how == "is killed") ::raise(SIGKILL);
  if (how == "has no memory") without_memory();
  if (how == "loops for ever")
    for (volatile bool ever = true; ever;)
      ;
  if (how == "locks a mutex twice") {
    static std::timed_mutex one;
    one.lock();
    while (!one.try_lock_for(std::chrono::hours{1})) continue;
  }
  if (how == "throws") throw std::domain_error("the same each time");
  if (how.ends_with("in the transfer")) ::raise(SIGKILL);
}

// Rank `victim` was killed. The next one with that number receives its state from rank 0.
bool dies_in_transfer(const std::string& how, std::int32_t rank) {
  return (rank == victim && how == "the receiver dies in the transfer") ||
         (rank == 0 && how == "the donor dies in the transfer") ||
         (rank != 2 && how == "both die in the transfer");
}

struct behaviour {
  std::string how;
  std::string folder;
};
behaviour read_name(const std::string& name) {
  const auto at = name.find('@');
  return {name.substr(0, at), at == std::string::npos ? "" : name.substr(at + 1)};
}

// The integer payload polls its collectives, for lanes that cannot wait. Here it waits.
class waiting_world final : public forwarding_communicator {
public:
  using forwarding_communicator::forwarding_communicator;
  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return waited(forwarding_communicator::all_reduce(data, operation, among));
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    if (at_broadcast) at_broadcast();
    return waited(forwarding_communicator::broadcast(data, root, among));
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    return waited(forwarding_communicator::barrier(label, deadline, among));
  }
  std::function<void()> at_broadcast;

private:
  struct waited_work final : work {
    explicit waited_work(work_ptr inner) : inner_(std::move(inner)) {}
    work_result poll() override {
      inner_->wait();
      return inner_->poll();
    }
    void wait() override { inner_->wait(); }
    work_ptr inner_;
  };
  static work_ptr waited(work_ptr inner) { return std::make_shared<waited_work>(std::move(inner)); }
};

class waiting_recipe final : public learner_recipe {
public:
  waiting_recipe(modular_options options, behaviour as)
      : inner_(std::move(options)), as_(std::move(as)) {}
  std::unique_ptr<learner> make(const learner_context& who) const override {
    return std::make_unique<waiting>(inner_.make(who), who.rank, as_);
  }

private:
  struct waiting final : learner {
    waiting(std::unique_ptr<learner> inner, std::int32_t rank, const behaviour& as)
        : inner_(std::move(inner)), rank_(rank), as_(as) {}
    void bind(std::shared_ptr<communicator> world, generation_id generation) override {
      world_ = std::make_shared<waiting_world>(std::move(world));
      inner_->bind(world_, generation);
    }
    hook_outcome on(const hook& h, const closure& inner) override {
      if (h.is<hooks::restore_state>() && dies_in_transfer(as_.how, rank_))
        world_->at_broadcast = [this, n = 0]() mutable { die_in_third(++n); };
      auto outcome = inner_->on(h, inner);
      world_->at_broadcast = nullptr;
      return outcome;
    }
    // The first two are the header. The third one is the only chunk.
    void die_in_third(int broadcast) const {
      if (broadcast == 3 && first_time(as_.folder, "transfer" + std::to_string(rank_)))
        ::raise(SIGKILL);
    }
    void keep_point() override { inner_->keep_point(); }
    value result() override { return inner_->result(); }
    std::unique_ptr<learner> inner_;
    std::shared_ptr<waiting_world> world_;
    const std::int32_t rank_;
    const behaviour& as_;  // of the recipe, which lives longer
  };
  modular_recipe inner_;
  const behaviour as_;
};

// Rank `victim` fills its memory. All ranks then sum for ever, and note when a sum throws.
recipe_ptr heavy_recipe(const std::string& folder) {
  return call_recipe([folder](rank_context& r) {
    std::vector<char> ballast;
    if (r.rank() == victim) {
      ballast.assign(std::size_t{3} << 30, '\1');
      write_text(folder + "/pid.new", std::to_string(::getpid()));
    }
    std::vector<float> data(std::size_t{1} << 18, 1.F);
    try {
      for (int n = 0;; ++n) {
        r.collectives().all_reduce({data.data(), data.size(), dtype::f32}, reduction::sum)->wait();
        if (n == 3 && r.rank() == victim)
          std::filesystem::rename(folder + "/pid.new", folder + "/pid");
      }
    } catch (const generation_closed&) {
      write_text(folder + "/released" + std::to_string(r.rank()), std::to_string(now()));
      throw;
    }
  });
}

// Returns when every rank has been here once: all of them hold the state of the same step.
void wait_for_all(const std::string& folder, std::int32_t rank) {
  first_time(folder, "here" + std::to_string(rank));
  for (std::int32_t other = 0; other < world; ++other)
    while (!std::filesystem::exists(folder + "/here" + std::to_string(other)))
      std::this_thread::yield();
}

recipe_ptr recipe_named(const std::string& name) {
  const auto [how, folder] = read_name(name);
  if (how == "heavy") return heavy_recipe(folder);
  modular_options options;
  options.samples = 24;
  options.at_hook = [how = how, folder = folder](const learner_context& who, const hook& what) {
    if (!what.is<hooks::training_step>() || where(what).step != 4) return;
    if (how.ends_with("in the transfer")) wait_for_all(folder, who.rank);
    if (who.rank == victim && first_time(folder)) fail_as(how);
  };
  return std::make_shared<waiting_recipe>(std::move(options), read_name(name));
}

job job_of(const std::string& recipe, std::int32_t restarts) {
  job what;
  what.options.ranks = world;
  what.options.batch_size = 2;
  what.options.max_epochs = -1;
  what.options.max_steps = steps;
  what.options.placement = placement_kind::processes;
  what.options.elastic.max_restarts = restarts;
  what.options.time.detect = milliseconds{200};
  what.options.time.hook_limit = seconds{4};
  what.recipe_text = recipe;
  what.recipe = recipe_named(recipe);
  return what;
}

job_outcome run(job what) {
  asio::io_context loop;
  session s{loop.get_executor()};
  return s.run(std::move(what));
}

std::vector<std::uint64_t> weights_of(const value& result) {
  std::vector<std::uint64_t> all;
  if (const auto* list = result.get_if<value_list>())
    for (const auto& item : list->items)
      all.push_back(static_cast<std::uint64_t>(*item.get_if<std::int64_t>()));
  return all;
}
std::vector<std::uint64_t> expected_weights() {
  modular_options payload;
  payload.samples = 24;
  modular_reference reference{payload, job_of("none", 0).options};
  return reference.after(steps).weights;
}

struct ending {
  std::string how;
  failure_kind kind;
  std::string signal;
  std::string text;
};

}  // namespace

TEST_CASE("a rank's process ends in some way, once: it is classified, and the job goes on") {
  const auto one = GENERATE(
      values<ending>({{"overflows its stack", failure_kind::signal, "SIGSEGV", "SIGSEGV"},
                      {"calls terminate", failure_kind::signal, "SIGABRT", "SIGABRT"},
                      {"exits with 0", failure_kind::exit, "", "exit code 0"},
                      {"exits in order with 0", failure_kind::exit, "", "exit code 0"},
                      {"is killed", failure_kind::signal, "SIGKILL", "SIGKILL"},
                      {"has no memory", failure_kind::exception, "", "bad_alloc"},
                      {"loops for ever", failure_kind::deadline, "", "training_step"},
                      {"locks a mutex twice", failure_kind::deadline, "", "training_step"}}));
  INFO(one.how);
  const temporary_folder folder;
  const auto outcome = run(job_of(one.how + "@" + folder.path().string(), 2));
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(outcome.loop.steps == steps);
  CHECK(weights_of(outcome.result) == expected_weights());
  REQUIRE(outcome.generations.size() == 2);
  const auto& why = *outcome.generations[0].ended_by;
  INFO(render(why));
  CHECK(why.kind == one.kind);
  CHECK(why.signal == one.signal);
  CHECK_THAT(render(why), Catch::Contains(one.text));
  CHECK(why.rank == victim);
  CHECK(why.hook == "training_step");
  CHECK(why.step == 4);
  CHECK(outcome.survivors.empty());
}

TEST_CASE("a drill without a step happens although its rank was replaced before") {
  auto what = job_of("has drills", 2);
  what.options.faults = {
      {.what = fault_drill::kind::kill, .rank = victim, .hook = "training_step", .step = 2},
      {.rank = victim, .hook = "on_train_epoch_end"}};
  const auto outcome = run(what);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(weights_of(outcome.result) == expected_weights());
  REQUIRE(outcome.generations.size() == 3);
  CHECK(outcome.generations[0].ended_by->signal == "SIGKILL");
  CHECK(outcome.generations[1].ended_by->hook == "on_train_epoch_end");
}

TEST_CASE(
    "the receiver of a state, its donor, or both are killed in the transfer: the job goes on") {
  const auto how = GENERATE(as<std::string>{}, "the receiver dies in the transfer",
                            "the donor dies in the transfer", "both die in the transfer");
  INFO(how);
  const temporary_folder folder;
  const auto outcome = run(job_of(how + "@" + folder.path().string(), 4));
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(outcome.loop.steps == steps);
  CHECK(weights_of(outcome.result) == expected_weights());
  for (std::int32_t rank = 0; rank < world; ++rank)
    CHECK(std::filesystem::exists(folder.path() / ("transfer" + std::to_string(rank))) ==
          dies_in_transfer(how, rank));
  REQUIRE(outcome.generations.size() >= 3);
  std::string whys;
  for (const auto& g : outcome.generations)
    whys += (g.ended_by ? render(*g.ended_by) : "ended in order") + "\n";
  INFO(whys);
  for (const auto& g : outcome.generations) CHECK(g.steps_redone <= 1);
  const auto& second = *outcome.generations[1].ended_by;
  INFO(render(second));
  CHECK(second.signal == "SIGKILL");
  CHECK(dies_in_transfer(how, second.rank));
  CHECK(second.hook == "restore_state");
}

namespace {

class generation_watch final : public observer {
public:
  explicit generation_watch(std::function<void()> second) : second_(std::move(second)) {}
  void on(const observation& what) override {
    const auto* life = std::get_if<seen::lifecycle>(&what);
    if (life && life->event == lifecycle_kind::generation_forming && life->generation == 2)
      second_();
  }

private:
  std::function<void()> second_;
};

}  // namespace

TEST_CASE("the trace waits for its reader: a killed process is noticed, and every hook is traced") {
  const temporary_folder folder;
  std::promise<void> reads;
  const auto until = reads.get_future().share();
  std::atomic<std::int64_t> entered{0};
  auto what = job_of("is killed@" + folder.path().string(), 2);
  what.trace = [&](std::int32_t rank, const hook& h) {
    if (rank == 0 && h.is<hooks::training_step>() && where(h).step == 2) until.wait();
    if (rank == 0 && h.is<hooks::training_step>()) ++entered;
  };
  what.observers.push_back(
      [&] { return std::make_unique<generation_watch>([&] { reads.set_value(); }); });
  const auto outcome = run(std::move(what));
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(outcome.restarts == 1);
  CHECK(outcome.survivors.empty());
  CHECK(weights_of(outcome.result) == expected_weights());
  CHECK(entered >= steps);
}

TEST_CASE("a lane waits while too many of its hooks are not traced, until a generation ends") {
  trace_gate gate;
  std::atomic<std::int64_t> entered{0};
  std::atomic<bool> traced{false};
  std::thread reader{[&] {
    while (entered < trace_gate::ahead_max) std::this_thread::yield();
    traced = true;
    gate.traced({1, {}});
  }};
  for (; entered < trace_gate::ahead_max; ++entered) gate.enter();
  gate.enter();
  CHECK(traced);
  reader.join();
  gate.open();
  for (int i = 0; i < 10; ++i) gate.enter();
  gate.close();
  gate.traced({10 + trace_gate::ahead_max, "the disk is full"});
  CHECK_THROWS_WITH(gate.enter(), "the disk is full");
}

TEST_CASE("a rank's process fails in the same step each time: the job ends with the first cause") {
  const auto how =
      GENERATE(as<std::string>{}, "overflows its stack", "exits with 0", "is killed", "throws");
  INFO(how);
  constexpr std::int32_t most = 3;
  const auto begun = std::chrono::steady_clock::now();
  const auto outcome = run(job_of(how, most));
  REQUIRE(outcome.failed_with);
  const auto& why = outcome.failed_with->record;
  CHECK(why.rank == victim);
  CHECK(why.hook == "training_step");
  CHECK(why.step == 4);
  // SIGKILL comes from outside and never counts as the same failure.
  CHECK(outcome.restarts == (how == "is killed" ? most : 1));
  for (const auto& g : outcome.generations) CHECK(g.ended_by->rank == victim);
  CHECK(std::chrono::steady_clock::now() - begun < seconds{60});
}

// A loaded machine may keep a process of this test from running, so the best of five kills counts.
TEST_CASE("a rank with 3 GiB of memory is killed: its peers leave their sum within 100 ms") {
  const auto by = GENERATE(as<std::string>{}, "shm", "tcp");
  double best = 1e9;
  for (int round = 0; round < 5 && best > 100; ++round) {
    const temporary_folder folder;
    auto what = job_of("heavy@" + folder.path().string(), 0);
    what.purpose = stage::call;
    what.options.time = {};
    what.options.communicator = own_name{by};
    asio::io_context loop;
    session s{loop.get_executor()};
    std::optional<job_outcome> outcome;
    s.async_run(what, [&](job_outcome o) { outcome = std::move(o); });
    const auto pid_file = folder.path() / "pid";
    while (!std::filesystem::exists(pid_file)) {
      loop.poll();
      if (outcome) FAIL(render(outcome->failed_with->record));
      std::this_thread::yield();
    }
    const auto begun = now();
    REQUIRE(::kill(std::stoi(read_text(pid_file)), SIGKILL) == 0);
    loop.run();
    REQUIRE(outcome);
    REQUIRE(outcome->failed_with);
    CHECK(outcome->failed_with->record.signal == "SIGKILL");
    CHECK(outcome->failed_with->record.rank == victim);
    double last = 0;
    for (const auto* rank : {"0", "2"}) {
      const auto at = std::stoll(read_text(folder.path() / ("released" + std::string{rank})));
      last = std::max(last, static_cast<double>(at - begun) / 1e6);
    }
    best = std::min(best, last);
    std::printf("%s: the last peer left its sum after %.1f ms\n", by.c_str(), last);
  }
  CHECK(best < 100);
}

int main(int count, char** arguments) {
  if (const auto code = run_rank_if_child(count, arguments, {recipe_named, local_ports}))
    return *code;
  return run_tests(count, arguments);
}
