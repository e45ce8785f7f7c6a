// Goal: files of lines stay whole on a full disk and after a program that was killed.
#include "backends/telemetry/line_file.hpp"
#include "backends/telemetry/csv_logger.hpp"
#include "backends/telemetry/event_log.hpp"
#include "tests/support/temporary_folder.hpp"

#include <sys/resource.h>

#include <csignal>
#include <system_error>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// Limits the size of this process's files, as a full disk would.
class small_disk {
public:
  explicit small_disk(rlim_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit small{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~small_disk() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, before_);
  }
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;

private:
  rlimit old_{};
  void (*before_)(int);
};

std::chrono::system_clock::time_point zero() { return {}; }

}  // namespace

TEST_CASE("a line that does not fit leaves no partial line in the file", "[line_file]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "lines").string();
  line_file file{path, line_file::start::fresh};
  file.add("one\n");
  {
    const small_disk disk{8};
    CHECK_THROWS_AS(file.add("two and more\n"), std::system_error);
    CHECK(read_text(path) == "one\n");
    file.add("2\n");
  }
  file.add("three and more\n");
  CHECK(read_text(path) == "one\n2\nthree and more\n");
}

TEST_CASE("a truncated last line is removed before lines are appended", "[line_file]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "lines").string();
  const std::string wide(9000, 'x');
  for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
           {"one\ntw", "one\n"}, {"one\n" + wide, "one\n"}, {"on", ""}, {"one\n", "one\n"}}) {
    write_text(path, before);
    line_file{path, line_file::start::append}.add("next\n");
    CHECK(read_text(path) == after + "next\n");
  }
}

TEST_CASE("events that do not fit are dropped whole and counted once there is room",
          "[line_file]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "events.jsonl").string();
  event_log log{path, zero};
  log.on(seen::lifecycle{.event = lifecycle_kind::rank_started});
  const auto whole = read_text(path);
  {
    const small_disk disk{whole.size() + 20};
    for (int i = 0; i < 3; ++i)
      CHECK_THROWS_AS(log.on(seen::lifecycle{.event = lifecycle_kind::rank_finished}),
                      std::system_error);
    CHECK(read_text(path) == whole);
  }
  log.on(seen::lifecycle{.event = lifecycle_kind::job_ended});
  const auto all = read_text(path);
  CHECK_THAT(all, Catch::StartsWith(whole) && Catch::EndsWith("\n"));
  CHECK_THAT(all, Catch::Contains("events_lost") && Catch::Contains(R"({"count":"3"})"));
  CHECK_THAT(all.substr(whole.size()),
             !Catch::Contains("rank_finished") && Catch::Contains("job_ended"));
}

TEST_CASE("a row that does not fit is dropped together with its new column", "[line_file]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  csv_logger csv{path};
  csv.on(seen::metrics{{.epoch = 0, .step = 1}, {{"a", 1}}});
  const auto whole = read_text(path);
  {
    const small_disk disk{whole.size() + 2};
    CHECK_THROWS(csv.on(seen::metrics{{.epoch = 0, .step = 2}, {{"a", 2}}}));
    CHECK_THROWS(csv.on(seen::metrics{{.epoch = 0, .step = 3}, {{"a", 3}, {"b", 3}}}));
    CHECK(read_text(path) == whole);
  }
  csv.on(seen::metrics{{.epoch = 0, .step = 4}, {{"a", 4}, {"b", 5}}});
  CHECK(read_text(path) == "step,epoch,a,b\n1,0,1,\n4,0,4,5\n");
}

TEST_CASE("a metrics file with a truncated header is replaced by a new file", "[line_file]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  write_text(path, "step,ep");
  csv_logger{path}.on(seen::metrics{{.epoch = 0, .step = 1}, {{"a", 1}}});
  CHECK(read_text(path) == "step,epoch,a\n1,0,1\n");
}
