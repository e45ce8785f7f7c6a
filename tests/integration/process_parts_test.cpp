// Goal: what a rank's process brings along is made once and compared with the job's, and what its
// ranks return and queue reaches the caller or fails the job.
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string_view>
#include <thread>

#include "backends/lane.hpp"
#include "tests/support/integer_learner.hpp"
#include "tests/support/runner.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

bool is_child = false;  // this process was started as a rank by this program
std::string number;     // that process's number in the job

std::int64_t queue_many(rank_context& who, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) who.add_to_queue(i);
  return count;
}
const remote_function queueing{"queueing", queue_many};

/// Has another identity in a rank's process than in the caller's.
struct of_two_kinds : integer_recipe {
  of_two_kinds() : integer_recipe({.can_wait = true}) {}
  std::string identity() const override { return is_child ? "integers(4)" : "integers(8)"; }
};

recipe_ptr result_of_own_type(std::int32_t on) {
  return call_recipe([on](rank_context& who) -> value {
    if (who.rank() == on) return value_user{std::make_shared<const std::any>(1)};
    return 7;
  });
}

// The calls in all processes of a job are counted in the file that this names.
constexpr const char* counts = "TROUPE_TEST_COUNTS";
void count_call(const std::string& what) {
  if (const auto* file = std::getenv(counts)) std::ofstream{file, std::ios::app} << what + "\n";
}
bool has_counted(const std::string& what) {
  std::ifstream in{std::getenv(counts)};
  for (std::string line; std::getline(in, line);)
    if (line == what) return true;
  return false;
}

// Rank 1 dies once if calls are counted, as soon as the spare makes its recipe.
value die_beside_spare(rank_context& who) {
  if (who.rank() == 1 && std::getenv(counts) && !has_counted("death")) {
    while (!has_counted("spare")) std::this_thread::yield();
    count_call("death");
    ::raise(SIGKILL);
  }
  std::int64_t sum = 1;
  who.collectives().all_reduce({&sum, 1, dtype::i64}, reduction::sum)->wait();
  return sum;
}

// The name is the text of the recipe.
recipe_ptr recipe_named(const std::string& name) {
  if (name == "of two kinds") return std::make_shared<of_two_kinds>();
  if (name == "slow in process 2") {
    if (number == "2") count_call("spare");
    while (number == "2") std::this_thread::yield();
    return call_recipe(die_beside_spare);
  }
  if (name == "own type on rank 0") return result_of_own_type(0);
  if (name == "own type on rank 1") return result_of_own_type(1);
  return std::make_shared<integer_recipe>(integer_options{.can_wait = true});
}

/// The rendezvous `shm`, which counts its calls.
struct counted_kind : rendezvous_kind {
  explicit counted_kind(std::shared_ptr<rendezvous_kind> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return "counted"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options& how) const override {
    return inner_->arrange(how);
  }
  std::shared_ptr<communicator_backend> join(const std::string& address,
                                             const std::vector<int>& descriptors) const override {
    count_call("join");
    return inner_->join(address, descriptors);
  }

private:
  std::shared_ptr<rendezvous_kind> inner_;
};
ports counted_ports() {
  auto world = local_ports();
  world.use(std::make_shared<counted_kind>(world.rendezvous_kinds.front()));
  return world;
}
/// Opens no lane for rank 1.
struct broken_lanes : lane_backend {
  explicit broken_lanes(std::shared_ptr<lane_backend> inner) : inner_(std::move(inner)) {}
  std::unique_ptr<lane> open(const learner_context& context, recipe_ptr recipe,
                             lane_sink sink) override {
    if (context.rank == 1) throw std::runtime_error("no thread is left");
    return inner_->open(context, std::move(recipe), std::move(sink));
  }

private:
  std::shared_ptr<lane_backend> inner_;
};
constexpr const char* without_lane = "TROUPE_TEST_WITHOUT_LANE";
ports ports_of_rank() {
  count_call("world");
  auto world = counted_ports();
  if (std::getenv(without_lane)) world.lanes = std::make_shared<broken_lanes>(world.lanes);
  return world;
}

job in_processes(const std::string& recipe, std::int32_t ranks) {
  job what;
  what.options.ranks = ranks;
  what.options.batch_size = 2;
  what.options.placement = placement_kind::processes;
  what.recipe_text = recipe;
  what.recipe = recipe_named(recipe);
  return what;
}
job_outcome run(job what) {
  boost::asio::io_context loop;
  session s{loop.get_executor(), counted_ports()};
  return s.run(std::move(what));
}

}  // namespace

TEST_CASE("a recipe made of a text has another identity than the job's: the job is refused") {
  const auto outcome = run(in_processes("of two kinds", 1));
  REQUIRE(outcome.failed_with);
  CHECK_THAT(outcome.failed_with->record.what, Catch::Contains("the job's recipe is integers(8)") &&
                                                   Catch::Contains("makes integers(4)"));
  CHECK_THROWS_AS(outcome.rethrow(), user_error);
}

TEST_CASE("rank 0's result cannot be sent from its process: the job fails with the reason") {
  auto what = in_processes("own type on rank 0", 2);
  what.purpose = stage::call;
  const auto outcome = run(what);
  REQUIRE(outcome.failed_with);
  CHECK_THAT(outcome.failed_with->record.what,
             Catch::Contains("cannot be sent from its rank's process"));
  CHECK(outcome.failed_with->record.rank == 0);
  CHECK(outcome.failed_with->record.type == "troupe::user_error");
}

TEST_CASE("a result of another rank than 0 is not sent") {
  auto what = in_processes("own type on rank 1", 2);
  what.purpose = stage::call;
  const auto outcome = run(what);
  REQUIRE(outcome.ok());
  CHECK(outcome.result == value{7});
  CHECK(outcome.late.empty());
}

TEST_CASE("a function in a rank's process queues 100,000 values: all arrive") {
  boost::asio::io_context loop;
  session s{loop.get_executor()};
  auto outcome = s.spawn(in_processes("", 1).options, queueing, 100'000);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  REQUIRE(outcome.queue.size() == 100'000);
  CHECK(outcome.queue.front() == value{0});
  CHECK(outcome.queue.back() == value{99'999});
}

TEST_CASE("a process with several shards makes its ports and joins its communicator once") {
  const temporary_folder folder;
  const auto file = (folder.path() / "counts").string();
  auto what = in_processes("integers", 2);
  what.options.elastic.shards = 4;
  what.options.communicator = own_name{"counted"};
  ::setenv(counts, file.c_str(), 1);
  const auto outcome = run(what);
  ::unsetenv(counts);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  std::map<std::string, int> calls;
  std::ifstream in{file};
  for (std::string line; std::getline(in, line);) ++calls[line];
  CHECK(calls == std::map<std::string, int>{{"join", 2}, {"world", 2}});
}

TEST_CASE("an exception that ends a rank's actor in its process reaches the caller as text") {
  const bool elastic = GENERATE(false, true);
  INFO("elastic " << elastic);
  auto what = in_processes("integers", 2);
  what.options.elastic.max_restarts = elastic ? 1 : 0;
  ::setenv(without_lane, "1", 1);
  const auto outcome = run(what);
  ::unsetenv(without_lane);
  REQUIRE(outcome.failed_with);
  CHECK(outcome.failed_with->record.what == "the actor of rank 1 ended: no thread is left");
  CHECK(outcome.failed_with->record.rank == 1);
}

TEST_CASE("a spare that still makes its recipe when the job ends is not waited for") {
  auto what = in_processes("slow in process 2", 2);
  what.purpose = stage::call;
  what.options.elastic.max_restarts = 1;
  what.options.elastic.spares = 1;
  what.options.time.detect = std::chrono::seconds{3};
  const auto before = std::chrono::steady_clock::now();
  const auto outcome = run(what);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  // A rank's process that makes progress would get 16 times 2 D, and ends itself after a minute.
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds{48});
  CHECK(outcome.survivors.empty());
  CHECK(outcome.late.empty());
}

TEST_CASE("with shrink a spare that still makes its recipe is not waited for") {
  const temporary_folder folder;
  const auto file = (folder.path() / "counts").string();
  auto what = in_processes("slow in process 2", 2);
  what.purpose = stage::call;
  what.options.elastic = {.max_restarts = 1, .on_loss = elastic_options::loss::shrink, .spares = 1};
  ::setenv(counts, file.c_str(), 1);
  const auto outcome = run(what);
  ::unsetenv(counts);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  REQUIRE(outcome.generations.size() == 2);
  CHECK(outcome.generations[1].ranks == 1);
}

int main(int count, char** arguments) {
  is_child = count > 1 && std::string_view{arguments[1]} == "--troupe-rank";
  if (is_child && count > 2) number = arguments[2];
  rank_process_options home{recipe_named, ports_of_rank};
  home.functions = {queueing};
  if (const auto code = run_rank_if_child(count, arguments, home)) return *code;
  return run_tests(count, arguments);
}
