// Goal: a process counts as stopped after enough consecutive looks that found it stopped. A process
// that continues in between is left alone.
#include "backends/processes/process_looks.hpp"

#include <unistd.h>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("a stopped process is found after four detection times and at least 2 s") {
  CHECK(stop_watch{1ms}.limit() == 2s);
  CHECK(stop_watch{500ms}.limit() == 2s);
  CHECK(stop_watch{1s}.limit() == 4s);
  CHECK(stop_watch{1s}.between() * stop_watch::looks == 4s);
}

TEST_CASE("only consecutive looks that find the process stopped count") {
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

TEST_CASE("a running process is not reported as stopped") { CHECK_FALSE(is_stopped(::getpid())); }
