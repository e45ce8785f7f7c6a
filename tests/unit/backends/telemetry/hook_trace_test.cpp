// Goal: --trace-hooks writes lines of the documented form, also from several ranks at once.
#include "backends/telemetry/hook_trace.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include <csignal>
#include <map>
#include <sstream>
#include <thread>

#include "tests/support/catch.hpp"

using namespace troupe;
using troupe::testing::temporary_folder;

TEST_CASE("a line has rank and stage and hook and epoch and step and batch", "[trace]") {
  const hook start =
      hooks::on_train_batch_start{{{.stage = stage::train, .epoch = 0, .step = 0, .batch = 0}}};
  CHECK(trace_line(0, start) ==
        "{\"rank\":0,\"stage\":\"train\",\"hook\":\"on_train_batch_start\",\"epoch\":0,\"step\":0,"
        "\"batch\":0}\n");
}

TEST_CASE("undefined positions are written as null", "[trace]") {
  CHECK(trace_line(3, hooks::connect{}) ==
        "{\"rank\":3,\"stage\":\"start\",\"hook\":\"connect\",\"epoch\":null,\"step\":null,"
        "\"batch\":null}\n");
}

TEST_CASE("ranks write whole lines and each rank's lines are in order", "[trace]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "trace.jsonl").string();
  constexpr int ranks = 4, hooks_each = 200;
  {
    hook_trace trace{path};
    std::vector<std::thread> lanes;
    for (int rank = 0; rank < ranks; ++rank)
      lanes.emplace_back([&trace, rank] {
        for (int i = 0; i < hooks_each; ++i)
          trace(rank, hooks::training_step{{{.stage = stage::train, .batch = i}}});
      });
    for (auto& lane : lanes) lane.join();
  }
  std::map<int, int> next;
  std::istringstream in{read_text_file(path)};
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    CHECK(json["batch"] == next[json["rank"]]++);
  }
  CHECK(next.size() == ranks);
  for (const auto& [rank, count] : next) CHECK(count == hooks_each);
}

TEST_CASE("every line is in the file as soon as the call returns", "[trace]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "trace.jsonl").string();
  hook_trace trace{path};
  trace(0, hooks::connect{});
  CHECK(read_text_file(path) == trace_line(0, hooks::connect{}));
}

TEST_CASE("a disk without room ends the trace and leaves whole lines", "[trace]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "trace.jsonl").string();
  hook_trace trace{path};
  trace(0, hooks::connect{});
  const auto first = trace_line(0, hooks::connect{});
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{first.size() + 10, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  CHECK(trace.trouble().empty());
  CHECK_NOTHROW(trace(1, hooks::connect{}));
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  trace(2, hooks::connect{});  // there is room again, but not for what is missing
  CHECK_THAT(trace.trouble(), Catch::Contains("cannot write " + path + ": File too large"));
  CHECK(read_text_file(path) == first);
}

TEST_CASE("a trace file that cannot be written is refused at the start", "[trace]") {
  CHECK_THROWS_AS(hook_trace{"/proc/absent/trace.jsonl"}, user_error);
}
