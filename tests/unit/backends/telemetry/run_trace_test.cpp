// Goal: a trace is whole JSON after every write, and its slices are the hooks of each rank.
#include "backends/telemetry/run_trace.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"

using namespace troupe;
using nlohmann::json;
using troupe::testing::read_text;
using troupe::testing::temporary_folder;

namespace {

struct traced {
  explicit traced(std::uint64_t most = run_trace::default_file_max)
      : path((folder.path() / "trace.json").string()),
        trace(
            path, [this] { return now; }, most) {}

  temporary_folder folder;
  std::string path;
  std::chrono::nanoseconds now{1000};
  run_trace trace;

  template <class Hook>
  void enter(std::int32_t rank, int microseconds, Hook what = {}) {
    now = std::chrono::microseconds{microseconds + 1};
    what.at = {.stage = stage::train, .epoch = 0, .step = 3, .batch = 4};
    trace.enter(rank, what);
  }
  json events() const { return json::parse(read_text(path))["traceEvents"]; }
  // `name begin-end` of each slice of a rank, in the order of the file.
  std::vector<std::string> slices(int rank) const {
    std::vector<std::string> all;
    for (const auto& e : events())
      if (e["ph"] == "X" && e["pid"] == rank + 1) {
        const auto begin = e["ts"].get<double>();
        all.push_back(e["name"].get<std::string>() + " " + std::to_string(std::lround(begin)) +
                      "-" + std::to_string(std::lround(begin + e["dur"].get<double>())));
      }
    return all;
  }
};

using words = std::vector<std::string>;

hooks::optimizer_step step_with(std::uint32_t closure) {
  hooks::optimizer_step step;
  step.closure = closure;
  return step;
}

}  // namespace

TEST_CASE("a hook's slice ends when its rank enters the next one", "[trace]") {
  traced t;
  t.enter<hooks::on_train_batch_start>(0, 0);
  t.enter<hooks::on_train_batch_start>(1, 5);
  t.enter<hooks::on_train_batch_end>(0, 10);
  t.now = std::chrono::microseconds{31};
  t.trace.finish();
  CHECK(t.slices(0) == words{"on_train_batch_start 0-10", "on_train_batch_end 10-30"});
  CHECK(t.slices(1) == words{"on_train_batch_start 5-30"});
  words names;
  for (const auto& e : t.events()) {
    if (e["ph"] == "M" && e["name"] == "process_name") names.push_back(e["args"]["name"]);
    if (e["ph"] == "X") CHECK(e["args"] == json{{"epoch", 0}, {"step", 3}, {"batch", 4}});
  }
  CHECK(names == words{"job", "rank 0", "rank 1"});
}

TEST_CASE("the hooks of a closure lie inside the slice of their optimizer_step", "[trace]") {
  traced t;
  t.enter(0, 0, step_with(2));
  t.enter<hooks::training_step>(0, 1);
  t.enter<hooks::backward>(0, 4);
  t.enter<hooks::on_train_batch_end>(0, 9);
  t.trace.finish();
  CHECK(t.slices(0) ==
        words{"training_step 1-4", "backward 4-9", "optimizer_step 0-9", "on_train_batch_end 9-9"});
}

TEST_CASE("a closure that is called again stays inside its optimizer_step", "[trace]") {
  traced t;
  t.enter(0, 0, step_with(2));
  for (const int at : {1, 5}) {
    t.enter<hooks::training_step>(0, at);
    t.enter<hooks::backward>(0, at + 2);
  }
  t.enter<hooks::on_train_batch_end>(0, 9);
  t.trace.finish();
  CHECK(t.slices(0) == words{"training_step 1-3", "backward 3-5", "training_step 5-7",
                             "backward 7-9", "optimizer_step 0-9", "on_train_batch_end 9-9"});
}

TEST_CASE("a generation that closes ends the slices, and rewind leaves a closure", "[trace]") {
  traced t;
  t.trace.add({.event = lifecycle_kind::generation_forming, .generation = 1});
  t.enter(0, 0, step_with(2));
  t.enter<hooks::training_step>(0, 1);
  t.now = std::chrono::microseconds{8};
  t.trace.add({.event = lifecycle_kind::rank_failed, .rank = 1, .details = {{"what", "\xff\"<"}}});
  t.trace.add({.event = lifecycle_kind::generation_closed, .generation = 1});
  CHECK(t.slices(0) == words{"training_step 1-7", "optimizer_step 0-7"});
  t.trace.add({.event = lifecycle_kind::generation_forming, .generation = 2});
  t.enter<hooks::rewind>(0, 10);
  t.enter<hooks::training_step>(0, 12);
  t.trace.finish();
  CHECK(t.slices(0).at(2) == "rewind 10-12");
  words marks;
  for (const auto& e : t.events())
    if (e["ph"] == "B" || e["ph"] == "E" || e["ph"] == "i")
      marks.push_back(e["ph"].get<std::string>() + " " + e["name"].get<std::string>());
  CHECK(marks == words{"B generation 1", "i rank_failed", "E generation", "i generation_closed",
                       "B generation 2"});
}

TEST_CASE("the file is whole JSON before the trace is finished", "[trace]") {
  traced t;
  CHECK(t.events().empty());
  for (int i = 0; i < 3000; ++i) t.enter<hooks::backward>(i % 3, i);
  const auto early = t.slices(0).size();
  CHECK(early > 100);  // a buffer was full, or a second has passed
  t.trace.finish();
  CHECK(t.slices(0).size() == 1000);
}

TEST_CASE("a trace that reaches its size limit drops hooks and still takes events", "[trace]") {
  traced t{5000};
  for (int i = 0; i < 3000; ++i) t.enter<hooks::backward>(0, i);
  t.trace.add({.event = lifecycle_kind::checkpoint_written, .step = 9});
  const auto size = read_text(t.path).size();
  for (int i = 3000; i < 9000; ++i) t.enter<hooks::backward>(0, i);
  t.trace.add({.event = lifecycle_kind::job_ended});
  CHECK(read_text(t.path).size() < size + 300);
  const auto all = t.events();
  CHECK(all.back()["name"] == "job_ended");
  CHECK(std::count_if(all.begin(), all.end(), [](const json& e) {
          return e["name"] == "trace is full: no more hooks";
        }) == 1);
}

TEST_CASE("a disk without room ends the trace and leaves whole JSON", "[trace]") {
  traced t;
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1500, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  for (int i = 0; i < 3000; ++i) t.enter<hooks::backward>(0, i);
  t.trace.finish();
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  CHECK_FALSE(t.trace.trouble().empty());
  CHECK(t.events().empty());
}

TEST_CASE("a trace path that is not a regular file is a user_error", "[trace]") {
  const temporary_folder folder;
  const auto clock = [] { return std::chrono::nanoseconds{0}; };
  for (const auto& path : {folder.path().string(), std::string{"/dev/null"},
                           (folder.path() / "absent" / "trace.json").string()}) {
    try {
      const run_trace trace{path, clock};
      FAIL("no exception");
    } catch (const user_error& error) {
      CHECK_THAT(error.what(), Catch::Contains(path));
    }
  }
}

TEST_CASE("collectives are slices, and arrows come from the rank that called last") {
  traced t;
  const auto at = [](std::int32_t rank, int began, int took, std::uint64_t number) {
    seen::collective what;
    what.rank = rank;
    what.ranks = 3;
    what.generation = 1;
    what.number = number;
    what.kind = collective_kind::all_reduce;
    what.bytes = 64;
    what.began = std::chrono::microseconds{began + 1};
    what.took = std::chrono::microseconds{took};
    return what;
  };
  t.trace.add(at(0, 10, 30, 1));
  t.trace.add(at(0, 20, 30, 2));  // overlaps: another row
  t.trace.add(at(1, 35, 5, 1));
  t.trace.add(at(2, 15, 25, 1));
  auto failed = at(1, 50, 5, 2);
  failed.failed = true;
  failed.label = "a \"label\"";
  t.trace.add(failed);
  t.trace.finish();
  CHECK(t.slices(0) == words{"all_reduce 10-40", "all_reduce 20-50"});
  CHECK(t.slices(1) == words{"all_reduce 35-40", "all_reduce 50-55"});
  std::vector<int> rows, from, to;
  for (const auto& e : t.events()) {
    if (e["ph"] == "X" && e["pid"] == 1) rows.push_back(e["tid"]);
    if (e["ph"] == "s") from.push_back(e["pid"]);
    if (e["ph"] == "f") to.push_back(e["pid"]);
    if (e["ph"] == "X" && e["args"].contains("failed")) CHECK(e["args"]["label"] == "a \"label\"");
  }
  CHECK(rows == std::vector<int>{2, 3});
  CHECK(from == std::vector<int>{2, 2});  // rank 1 called the first one last; the second one failed
  CHECK(to == std::vector<int>{1, 3});
}

TEST_CASE("collectives without the slices of other ranks do not fill the memory") {
  traced t;
  seen::collective what;
  what.ranks = 2;
  for (std::uint64_t n = 1; n <= run_trace::open_max + 10; ++n) {
    what.number = n;
    t.trace.add(what);
  }
  what.rank = 1;
  for (std::uint64_t n = 1; n <= run_trace::open_max + 10; ++n) {
    what.number = n;
    t.trace.add(what);
  }
  t.trace.finish();
  std::size_t arrows = 0;
  for (const auto& e : t.events()) arrows += e["ph"] == "s";
  CHECK(arrows > 0);
  CHECK(arrows <= run_trace::open_max);
}
