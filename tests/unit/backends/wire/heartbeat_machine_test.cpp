// Goal: a link whose ends speak is never lost. A peer that is silent is lost within the detection
// time, and an end that was stopped itself does not blame its peer.
#include "backends/wire/heartbeat_machine.hpp"

#include <sstream>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using action = heartbeat_machine::action;

namespace {

std::vector<action> beats(heartbeat_machine& end, int count) {
  std::vector<action> all;
  for (int i = 0; i < count; ++i) all.push_back(end.beat());
  return all;
}

}  // namespace

TEST_CASE("an end that has sent nothing sends a heartbeat each beat", "[link]") {
  heartbeat_machine end;
  CHECK(end.beat() == action::send_beat);
  end.sent();
  CHECK(end.beat() == action::none);
  CHECK(end.beat() == action::send_beat);
}

TEST_CASE("a peer that was silent for five beats is lost, once", "[link]") {
  heartbeat_machine end;
  end.received();
  CHECK(beats(end, 4) == std::vector<action>(4, action::send_beat));
  end.received();
  CHECK(beats(end, 4) == std::vector<action>(4, action::send_beat));
  CHECK_FALSE(end.over());
  CHECK(end.beat() == action::lost);
  CHECK(end.over());
  end.received();
  CHECK(end.beat() == action::none);
  CHECK(heartbeats_until_lost * heartbeat_interval(500ms) == 500ms);
}

TEST_CASE("a peer that has not spoken yet is not lost", "[link]") {
  heartbeat_machine end;
  CHECK(beats(end, 100) == std::vector<action>(100, action::send_beat));
}

TEST_CASE("both ends send heartbeats: neither is lost, however long nothing else is sent",
          "[link]") {
  heartbeat_machine ends[2];
  for (int i = 0; i < 1000; ++i)
    for (const auto side : {0, 1})
      if (ends[side].beat() == action::send_beat) ends[1 - side].received();
  CHECK_FALSE(ends[0].over());
  CHECK_FALSE(ends[1].over());
}

TEST_CASE("a closed link neither beats nor is lost", "[link]") {
  heartbeat_machine end;
  end.received();
  end.close();
  CHECK(beats(end, 10) == std::vector<action>(10, action::none));
}

TEST_CASE("heartbeat_machine is a regular value with a digest and a text", "[link]") {
  heartbeat_machine a;
  auto b = a;
  CHECK(a == b);
  CHECK(a.digest() == b.digest());
  b.received();
  b.beat();
  CHECK(a != b);
  CHECK(a.digest() != b.digest());
  std::ostringstream text;
  text << a << ", " << b;
  CHECK(text.str() == "heartbeat(nothing received yet), heartbeat(1 beats silent)");
}
