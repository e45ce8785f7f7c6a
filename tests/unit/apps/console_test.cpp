// Goal: the console clears its progress line on a terminal whose width changes.
#include "apps/troupe/console.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe::program;

namespace {

struct terminal_screen {
  std::size_t columns = 80;
  std::vector<std::string> writes;
  console screen{[](std::string_view) {},
                 [this](std::string_view text) { writes.emplace_back(text); },
                 {.live = true, .columns = [this] { return columns; }}};
};

std::string live(std::size_t length) { return "\r" + std::string(length, 'x') + "\x1b[K"; }

}  // namespace

TEST_CASE("a terminal keeps its width: new text overwrites the progress line", "[console]") {
  terminal_screen t;
  t.screen.progress(live(79));
  t.screen.progress(live(60));
  CHECK(t.writes == std::vector{live(79), live(60)});
  t.screen.note("a note");
  CHECK(t.writes.back() == "\r\x1b[Ka note\n");
}

TEST_CASE("a terminal becomes narrower: all rows of the wrapped progress line are cleared",
          "[console]") {
  terminal_screen t;
  t.screen.progress(live(79));
  t.columns = 30;
  t.screen.progress(live(29));
  CHECK(t.writes.back() == "\r\x1b[2A\x1b[J" + live(29).substr(1));
  t.screen.progress(live(29));
  CHECK(t.writes.back() == live(29));
  t.columns = 20;
  t.screen.error("full");
  CHECK(t.writes.back() == "\r\x1b[1A\x1b[Jerror: full\n");
  t.screen.note("nothing live stands there now");
  CHECK(t.writes.back() == "\r\x1b[Knothing live stands there now\n");
}

TEST_CASE("a live text of several lines is written over from its first line", "[console]") {
  terminal_screen t;
  t.screen.progress("\rone\x1b[K\ntwo\x1b[K\nthree\x1b[K");
  t.screen.progress("\rONE\x1b[K\nTWO\x1b[K\nTHREE\x1b[K");
  CHECK(t.writes.back() == "\r\x1b[2AONE\x1b[K\nTWO\x1b[K\nTHREE\x1b[K");
  t.screen.note("a note");
  CHECK(t.writes.back() == "\r\x1b[2A\x1b[Ja note\n");
  t.screen.progress("\rone\x1b[K\ntwo\x1b[K");
  CHECK(t.writes.back() == "\rone\x1b[K\ntwo\x1b[K");
  t.screen.progress("\rone\x1b[K");
  CHECK(t.writes.back() == "\r\x1b[1A\x1b[Jone\x1b[K");
  t.screen.progress("\rone\x1b[K\ntwo\x1b[K");
  CHECK(t.writes.back() == "\rone\x1b[K\ntwo\x1b[K");
}

TEST_CASE("a terminal becomes narrower: lines of a live text that wrap are cleared", "[console]") {
  terminal_screen t;
  t.screen.progress(live(50) + "\n" + live(70).substr(1));
  t.columns = 30;
  t.screen.progress(live(29) + "\n" + live(29).substr(1));
  CHECK(t.writes.back() == "\r\x1b[4A\x1b[J" + live(29).substr(1) + "\n" + live(29).substr(1));
}

TEST_CASE("a quiet console drops notes, and prints warnings and answers", "[console]") {
  terminal_screen t;
  t.screen.be_quiet();
  t.screen.note("dropped");
  t.screen.warning("said");
  t.screen.answer("asked for");
  CHECK(t.writes == std::vector<std::string>{"\r\x1b[Kwarning: said\n", "\r\x1b[Kasked for\n"});
}

namespace {

// Standard error with a reader that may pause.
struct paused_reader {
  std::atomic<bool> reads{false};
  std::atomic<bool> asked{false};  // a line waits for room
  std::vector<std::string> writes;
  console screen{[](std::string_view) {},
                 [this](std::string_view text) { writes.emplace_back(text); },
                 {.has_room = [this](std::chrono::milliseconds wait) {
                   asked = asked || wait.count() > 0;
                   std::this_thread::yield();
                   return reads.load();
                 }}};
  ~paused_reader() { console::end_soon(false); }

  std::thread warn() {
    std::thread other{[this] { screen.warning("late"); }};
    while (!asked) std::this_thread::yield();
    return other;
  }
};

}  // namespace

TEST_CASE("standard error is full: progress and notes of handlers do not wait", "[console]") {
  paused_reader t;
  t.screen.progress("step 1\n");
  {
    const console::no_wait handler;
    t.screen.note("SIGTERM: stopping");
  }
  CHECK(t.writes.empty());
  auto other = t.warn();
  t.screen.progress("step 2\n");
  {
    const console::no_wait handler;
    t.screen.note("SIGTERM: ending");
  }
  t.reads = true;
  other.join();
  t.screen.note("the end");
  CHECK(t.writes == std::vector<std::string>{"warning: late\n", "the end\n"});
}

TEST_CASE("the program is to end: lines that wait for the reader are dropped", "[console]") {
  paused_reader t;
  auto other = t.warn();
  console::end_soon();
  other.join();
  t.screen.error("the next line does not wait");
  CHECK(t.writes.empty());
  t.reads = true;
  t.screen.note("the end");
  CHECK(t.writes == std::vector<std::string>{"the end\n"});
}
