// Goal: events.jsonl has one line of JSON per lifecycle event.
#include "backends/telemetry/event_log.hpp"
#include "tests/support/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using troupe::testing::temporary_folder;

namespace {

using std::chrono::system_clock;

system_clock::time_point noon() {
  using namespace std::chrono;
  return sys_days{year{2026} / November / 21} + hours{12} + milliseconds{7};
}

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream in{read_text_file(path)};
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("times are UTC with milliseconds", "[events]") {
  CHECK(utc(noon()) == "2026-11-21T12:00:00.007Z");
  CHECK(utc(system_clock::time_point{}) == "1970-01-01T00:00:00.000Z");
}

TEST_CASE("an event has a time and a name and a place and details", "[events]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "events.jsonl").string();
  event_log log{path, noon};
  log.on(seen::lifecycle{lifecycle_kind::checkpoint_written, -1, 1, 937, {{"path", "a\"b"}}});
  log.on(seen::lifecycle{lifecycle_kind::rank_started, 0, 0, undefined, {}});
  log.on(seen::progress{});
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == nlohmann::json::parse(R"({"time":"2026-11-21T12:00:00.007Z",
    "event":"checkpoint_written","rank":null,"generation":1,"step":937,
    "details":{"path":"a\"b"}})"));
  CHECK(lines[1]["rank"] == 0);
  CHECK(lines[1]["generation"].is_null());
  CHECK(lines[1]["step"].is_null());
  CHECK(lines[1]["details"] == nlohmann::json::object());
}

TEST_CASE("a resumed run appends to the same file", "[events]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "events.jsonl").string();
  event_log{path, noon}.on(seen::lifecycle{.event = lifecycle_kind::rank_started});
  event_log{path, noon}.on(seen::lifecycle{.event = lifecycle_kind::rank_finished});
  CHECK(lines_of(path).size() == 2);
}

TEST_CASE("text that is not UTF-8 does not end the log", "[events]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "events.jsonl").string();
  event_log log{path, noon};
  log.on(seen::lifecycle{.event = lifecycle_kind::rank_failed, .details = {{"what", "caf\xe9"}}});
  CHECK(lines_of(path).size() == 1);
}

TEST_CASE("the number of dropped observations is logged at the end", "[events]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "events.jsonl").string();
  event_log log{path, noon};
  log.finish(0);
  CHECK(lines_of(path).empty());
  log.finish(12);
  CHECK(lines_of(path).at(0)["details"]["count"] == "12");
}
