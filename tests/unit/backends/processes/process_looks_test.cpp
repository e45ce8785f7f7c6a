// Goal: a stopped process is found after so many looks in a row, and one that goes on is left
// alone.
#include "backends/processes/process_looks.hpp"

#include <unistd.h>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("a process that is stopped is found within max(4 D, 2 s)") {
  CHECK(stop_watch{1ms}.limit() == 2s);
  CHECK(stop_watch{500ms}.limit() == 2s);
  CHECK(stop_watch{1s}.limit() == 4s);
  CHECK(stop_watch{1s}.between() * stop_watch::looks == 4s);
}

TEST_CASE("only looks in a row that find the process stopped count") {
  stop_watch watch{1s};
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i < stop_watch::looks; ++i) CHECK_FALSE(watch.look(true));
    CHECK_FALSE(watch.look(false));
  }
  for (int i = 1; i < stop_watch::looks; ++i) CHECK_FALSE(watch.look(true));
  CHECK(watch.look(true));
}

TEST_CASE("the processor time of a process grows while it computes") {
  const auto before = processor_time(::getpid());
  CHECK(before > 0);
  while (processor_time(::getpid()) == before) {
  }
  CHECK(processor_time(::getpid()) > before);
}

TEST_CASE("a process that is no child is not stopped") { CHECK_FALSE(is_stopped(::getpid())); }
