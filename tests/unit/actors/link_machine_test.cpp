// Goal: over a path that loses, repeats and reorders frames, a link delivers every message once and
// in order, or it ends. Only silence beyond the limit or a full window ends it.
#include "actors/link_machine.hpp"

#include <rapidcheck.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct in_flight {
  std::size_t to;
  link_frame frame;
};

// Two ends, and a path between them that follows the script.
struct path {
  link_machine ends[2]{link_machine{{}, 0ns}, link_machine{{}, 0ns}};
  std::vector<std::uint64_t> got[2];
  std::set<std::uint64_t> held[2];
  std::vector<in_flight> wire;
  std::chrono::nanoseconds now{0};

  void send(std::size_t from, link_frame frame) { wire.push_back({1 - from, frame}); }
  void submit(std::size_t from) {
    if (const auto n = ends[from].submit()) send(from, ends[from].frame(n));
  }
  void arrive(in_flight what) {
    auto& end = ends[what.to];
    const auto r = end.arrived(what.frame, now);
    if (r.hold) held[what.to].insert(what.frame.number);
    if (!r.deliver) return;
    got[what.to].push_back(what.frame.number);
    auto& kept = held[what.to];
    for (; !kept.empty() && *kept.begin() <= end.heard(); kept.erase(kept.begin()))
      got[what.to].push_back(*kept.begin());
  }
  void beat() {
    now += ends[0].limits().beat;
    for (std::size_t side : {0, 1}) {
      const auto r = ends[side].beat(now);
      for (const auto n : r.again) send(side, ends[side].frame(n));
      if (r.speak) send(side, ends[side].frame());
    }
  }
  void deliver_all() {
    for (auto all = std::exchange(wire, {}); !all.empty(); all = std::exchange(wire, {}))
      for (const auto& f : all) arrive(f);
  }
};

bool counts_up(const std::vector<std::uint64_t>& got) {
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != i + 1) return false;
  return true;
}

std::vector<std::uint64_t> numbers(std::uint64_t first, std::uint64_t last) {
  std::vector<std::uint64_t> all;
  for (auto n = first; n <= last; ++n) all.push_back(n);
  return all;
}

}  // namespace

TEST_CASE("messages arrive once and in order over a path that loses and repeats and reorders",
          "[link]") {
  const bool holds =
      rc::check("messages arrive once and in order, and all of them on a good path", [] {
        path p;
        const auto script = *rc::gen::container<std::vector<std::uint32_t>>(
            rc::gen::inRange<std::uint32_t>(0, 1u << 16));
        int beats_without_news = 0;
        for (const auto word : script) {
          const auto pick = p.wire.empty() ? 0 : (word >> 4) % p.wire.size();
          const auto at = p.wire.begin() + static_cast<std::ptrdiff_t>(pick);
          switch (word % 8) {
            case 0:
            case 1: p.submit(word >> 4 & 1); break;
            case 2:
              if (!p.wire.empty()) p.wire.erase(at);  // lost
              break;
            case 3:
              if (!p.wire.empty()) p.arrive(*at);  // arrives now and once more later
              break;
            case 4:
              if (++beats_without_news < 4) p.beat();
              break;
            default:
              if (p.wire.empty()) break;
              const auto what = *at;  // overtakes the frames before it
              p.wire.erase(at);
              p.arrive(what);
              beats_without_news = 0;
          }
          RC_ASSERT(counts_up(p.got[0]) && counts_up(p.got[1]));
        }
        for (int i = 0; i < 16; ++i) {
          p.deliver_all();
          p.beat();
        }
        p.deliver_all();
        for (std::size_t side : {0, 1}) {
          RC_ASSERT(counts_up(p.got[side]));
          if (p.ends[0].over() || p.ends[1].over()) continue;
          RC_ASSERT(p.got[side].size() == p.ends[1 - side].submitted());
          RC_ASSERT(p.ends[side].acknowledged() == p.ends[side].submitted());
        }
      });
  CHECK(holds);
}

TEST_CASE("reordered frames are held back and cause no retransmission", "[link]") {
  path p;
  for (int i = 0; i < 40; ++i) p.submit(0);
  std::ranges::reverse(p.wire);
  p.deliver_all();
  CHECK(p.got[1].size() == 40);
  CHECK(counts_up(p.got[1]));
  p.beat();
  p.deliver_all();
  p.beat();
  CHECK(p.ends[0].acknowledged() == 40);
  CHECK(p.wire.size() == 2);  // two empty frames
}

TEST_CASE("retransmission to a slow peer is limited to one burst per beat", "[link]") {
  link_machine end{{100ms, 500ms, 1024, 16}, 0ns};
  for (int i = 0; i < 300; ++i) end.submit();
  CHECK(end.beat(100ms).again.empty());
  CHECK(end.beat(200ms).again == numbers(1, 16));
  CHECK(end.beat(300ms).again == numbers(1, 16));
  end.arrived({0, 290}, 310ms);
  CHECK(end.beat(400ms).again == numbers(291, 300));
}

TEST_CASE("only missing frames are sent again", "[link]") {
  link_machine from{{}, 0ns};
  link_machine to{{}, 0ns};
  for (int i = 0; i < 100; ++i) from.submit();
  for (std::uint64_t n = 1; n <= 100; ++n)
    if (n % 10 != 0) to.arrived(from.frame(n), 1ms);
  from.beat(100ms);
  from.arrived(to.frame(), 101ms);
  // Frame 10 is the next expected one; the bit map reaches to 74.
  CHECK(from.beat(200ms).again == std::vector<std::uint64_t>{10, 20, 30, 40, 50, 60, 70});
  for (const auto n : {10, 20, 30, 40, 50, 60}) to.arrived(from.frame(n), 201ms);
  from.arrived({0, 9}, 202ms);  // overtaken on its way, so it acknowledges nothing new
  from.arrived(to.frame(), 202ms);
  CHECK(from.beat(300ms).again == std::vector<std::uint64_t>{70, 80, 90, 100});
}

TEST_CASE("a frame more than one window ahead is not held", "[link]") {
  link_machine end{{100ms, 500ms, 4}, 0ns};
  CHECK(end.arrived({4, 0}, 1ms).hold);
  CHECK_FALSE(end.arrived({4, 0}, 1ms).hold);  // it is held already
  CHECK_FALSE(end.arrived({5, 0}, 1ms).hold);
  CHECK(end.arrived({1, 0}, 1ms).deliver);
  CHECK(end.heard() == 1);
}

TEST_CASE("a link ends after silence of the limit and not before", "[link]") {
  link_machine end{{}, 0ns};
  CHECK_FALSE(end.beat(499ms).lost);
  end.arrived({0, 0}, 499ms);
  CHECK_FALSE(end.beat(998ms).lost);
  CHECK(end.beat(999ms).lost);
  CHECK(end.over());
  CHECK(end.submit() == 0);
  CHECK_FALSE(end.arrived({1, 0}, 1000ms).deliver);
}

TEST_CASE("a full send window ends the link", "[link]") {
  link_machine end{{100ms, 500ms, 3}, 0ns};
  for (std::uint64_t n = 1; n <= 3; ++n) CHECK(end.submit() == n);
  end.arrived({0, 1}, 1ms);
  CHECK(end.submit() == 4);
  CHECK(end.submit() == 0);
  CHECK(end.over());
}

TEST_CASE("an acknowledgement of a frame that was never sent is ignored", "[link]") {
  link_machine end{{}, 0ns};
  end.submit();
  CHECK(end.arrived({0, 7}, 1ms).release_to == 0);
  CHECK(end.acknowledged() == 0);
}

TEST_CASE("link_machine is a regular value with a digest and a text", "[link]") {
  link_machine a{{}, 0ns};
  auto b = a;
  CHECK(a == b);
  CHECK(a.digest() == b.digest());
  b.submit();
  CHECK(a != b);
  CHECK(a.digest() != b.digest());
  std::ostringstream text;
  text << b;
  CHECK(text.str() == "link(sent 1, acknowledged 0, heard 0)");
}
