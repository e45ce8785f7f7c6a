// Goal: a hook is not charged for a time in which its process was stopped.
#include "actors/hook_time.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a hook is charged for the time between regular looks", "[hook_time]") {
  hook_time time{500ms, 9500ms};
  for (auto now = 10s; now < 400s; now += 1s) REQUIRE(time.look(now, now - 9s) == now - 9s);
}

TEST_CASE("a hook is not charged for a stop of its process", "[hook_time]") {
  hook_time time{500ms, 9500ms};
  CHECK(time.look(10'000ms, 100ms) == 100ms);
  CHECK(time.look(610'000ms, 600'100ms) == 1600ms);  // the tick, and the second that is allowed
  CHECK(time.look(610'500ms, 600'600ms) == 2100ms);
  CHECK(time.look(1'210'500ms, 1'200'600ms) == 3600ms);
}

TEST_CASE("a hook is not charged for a stop before the first look", "[hook_time]") {
  hook_time time{500ms, 9500ms};
  CHECK(time.look(610'000ms, 600'100ms) == 1100ms);
}

TEST_CASE("a stop before a hook takes nothing off its time", "[hook_time]") {
  hook_time time{500ms, 9500ms};
  CHECK(time.look(10'000ms, 100ms) == 100ms);
  CHECK(time.look(610'000ms, 600'100ms) == 1600ms);
  CHECK(time.look(610'500ms, 400ms) == 400ms);
  CHECK(time.look(611'000ms, 900ms) == 900ms);
}

TEST_CASE("a hook that began after the last look and was stopped is not charged", "[hook_time]") {
  hook_time time{500ms, 9500ms};
  CHECK(time.look(10'000ms, 0ms) == 0ms);
  CHECK(time.look(610'000ms, 599'900ms) == 1400ms);
  CHECK(time.look(610'500ms, 600'400ms) == 1900ms);
}

}  // namespace
}  // namespace troupe
