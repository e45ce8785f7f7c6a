// Goal: the progress line is right. Its clock is moved by hand.
#include "backends/telemetry/progress_line.hpp"

#include <pty.h>
#include <unistd.h>

#include <cmath>
#include <regex>
#include <sstream>

#include "troupe/loggers.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct screen {
  std::chrono::nanoseconds now{0};
  std::vector<std::string> writes;
  progress_line line;

  explicit screen(progress_line::style how)
      : line(
            how, [this] { return now; },
            [this](std::string_view text) { writes.emplace_back(text); }) {}

  void train(std::int64_t batch, std::int64_t epoch = 0) {
    line.on(seen::progress{{.stage = stage::train, .epoch = epoch, .step = batch, .batch = batch},
                           100,
                           (epoch * 100 + batch + 1) * 64});
  }
  void know(metrics logged, std::vector<std::string> prog_bar = {}) {
    line.on(seen::metrics{{}, std::move(logged), std::move(prog_bar)});
  }
};

std::function<std::size_t()> wide(std::size_t columns) {
  return [columns] { return columns; };
}

}  // namespace

TEST_CASE("a live line is rewritten at most ten times a second", "[progress]") {
  screen s{{.live = true, .columns = wide(200), .epochs = 2}};
  s.know({{"train/loss", 0.5}});
  for (int batch = 0; batch < 100; ++batch) {
    s.train(batch);
    s.now += 10ms;
  }
  CHECK(s.writes.size() == 9);
  CHECK(s.writes.front() ==
        "\repoch 1/2  batch 11/100  loss 0.5000  6,400 samples/s  ETA 0:02\x1b[K");
  s.line.finish(0);
  CHECK(s.writes.back() == "\r\x1b[K");
}

TEST_CASE("a loss that is no number is shown without the sign of a NaN", "[progress]") {
  screen s{{.live = false, .epochs = 1}};
  s.train(0);
  s.know({{"train/loss", -std::nan("")}, {"score", -std::nan("")}}, {"score"});
  s.now += 11s;
  s.train(50);
  REQUIRE(s.writes.size() == 1);
  CHECK_THAT(s.writes[0], Catch::Contains("loss nan  score nan"));
}

TEST_CASE("values that are logged with prog_bar are shown after the usual ones", "[progress]") {
  screen s{{.live = false, .epochs = 1}};
  s.train(0);
  s.know({{"train/loss", 0.5}, {"score", 0.123456}, {"other", 1}}, {"train/loss", "score"});
  s.know({{"val/accuracy", 0.75}, {"val/f1", 0.5}}, {"val/f1", "val/accuracy"});
  s.know({{"score", 0.25}});  // once chosen, always shown
  s.now += 11s;
  s.train(50);
  REQUIRE(s.writes.size() == 1);
  CHECK_THAT(s.writes[0],
             Catch::Contains("loss 0.5000  val/accuracy 0.7500  score 0.25  val/f1 0.5  "));
}

TEST_CASE("without a terminal one line is written every ten seconds", "[progress]") {
  screen s{{.live = false, .epochs = 3}};
  for (int batch = 0; batch < 100; ++batch) {
    s.train(batch);
    s.now += 250ms;
  }
  REQUIRE(s.writes.size() == 2);
  CHECK(s.writes[0] == "epoch 1/3  batch 41/100  256 samples/s  ETA 1:05\n");
  s.line.finish(0);
  CHECK(s.writes.size() == 2);
}

TEST_CASE("a run shorter than one interval writes nothing", "[progress]") {
  screen s{{.live = true}};
  s.train(0);
  s.train(1);
  s.line.finish(0);
  CHECK(s.writes.empty());
}

TEST_CASE("a validation's time counts for the time left, not for samples per second",
          "[progress]") {
  screen s{{.live = true, .columns = wide(200), .epochs = 1}};
  for (int batch = 0; batch < 21; ++batch, s.now += 10ms) s.train(batch);
  s.know({{"val/accuracy", 0.75}});
  s.line.on(seen::progress{{.stage = stage::validate}, 10, 0});
  s.now += 1h;
  s.line.on(seen::progress{{.stage = stage::validate, .batch = 9}, 10, 0});
  CHECK(s.writes.back() == "\rvalidating  batch 10/10\x1b[K");
  for (int batch = 21; batch < 42; ++batch, s.now += 10ms) s.train(batch);
  CHECK(s.writes.back() ==
        "\repoch 1/1  batch 42/100  val/accuracy 0.7500  6,400 samples/s  ETA "
        "1:24:53\x1b[K");
}

TEST_CASE("after a restart the time left is that of the new generation", "[progress]") {
  screen s{{.live = false, .epochs = 1}};
  s.train(0);
  s.now += 1h;
  s.line.on(seen::lifecycle{.event = lifecycle_kind::generation_forming});
  s.train(10);
  s.now += 10s;
  s.train(20);
  CHECK_THAT(s.writes.back(), Catch::EndsWith("ETA 1:19\n"));
}

TEST_CASE("a live line is not wider than the terminal", "[progress]") {
  screen s{{.live = true, .columns = wide(20)}};
  s.train(0);
  s.now += 1s;
  s.train(1);
  CHECK(s.writes.at(0) == "\repoch 1/1\x1b[K");
}

TEST_CASE("unknown values of a loader or a resumed run are left out of the line", "[progress]") {
  screen s{{.live = false, .epochs = 5}};
  s.line.on(seen::progress{
      {.stage = stage::train, .epoch = 4, .step = 900, .batch = 7}, undefined, 90000});
  s.now += 10s;
  s.line.on(seen::progress{
      {.stage = stage::train, .epoch = 4, .step = 901, .batch = 8}, undefined, 90064});
  CHECK(s.writes.at(0) == "epoch 5/5  batch 9  6 samples/s\n");
}

TEST_CASE("the time left is that to the sooner limit", "[progress]") {
  const auto shown = [](std::int64_t epochs, std::int64_t steps) {
    screen s{{.live = false, .epochs = epochs, .max_steps = steps}};
    s.train(0);
    s.now += 10s;
    s.train(10);  // a batch and step a second
    return s.writes.at(0).substr(s.writes.at(0).rfind("ETA"));
  };
  CHECK(shown(1000, 40) == "ETA 0:30\n");
  CHECK(shown(-1, 40) == "ETA 0:30\n");
  CHECK(shown(1, 4000) == "ETA 1:29\n");
}

TEST_CASE("the limits that an ETA counts to are those of the fit's options", "[progress]") {
  const auto limits = progress_line::style::of({.max_epochs = 7, .max_steps = 40, .max_time = 60s});
  CHECK(limits.epochs == 7);
  CHECK(limits.max_steps == 40);
  CHECK(limits.max_time == 60s);
  const auto none = progress_line::style::of({.max_epochs = -1});
  CHECK(none.epochs == -1);
  CHECK_FALSE(none.max_steps);
  CHECK_FALSE(none.max_time);
  CHECK(progress_line::style::of({.max_epochs = 7, .fast_dev_run = 2}).epochs == 1);
}

TEST_CASE("a limit of time counts from the first step of training, also after a restart",
          "[progress]") {
  screen s{{.live = false, .epochs = -1, .max_time = 60s}};
  s.now = 100s;
  s.train(0);
  s.now += 10s;
  s.train(10);
  CHECK_THAT(s.writes.back(), Catch::EndsWith("ETA 0:50\n"));
  s.line.on(seen::lifecycle{lifecycle_kind::generation_forming});
  s.now += 10s;
  s.train(11);
  CHECK_THAT(s.writes.back(), Catch::EndsWith("ETA 0:40\n"));
  s.now += 50s;
  s.train(12);
  CHECK_THAT(s.writes.back(), Catch::EndsWith("ETA 0:00\n"));
}

TEST_CASE("ranks whose figures are known have a line each below the live line", "[progress]") {
  std::size_t rows = 24;
  screen s{{.live = true, .columns = wide(200), .rows = [&rows] { return rows; }, .epochs = 1}};
  s.train(0);
  s.now += 1s;
  metrics logged{{"train/loss", 0.5}, {"rank/ab/waiting_share", 1}, {"rank/2/other", 1}};
  for (int rank = 0; rank < 10; ++rank) {
    const auto name = "rank/" + std::to_string(rank);
    logged[name + "/samples_per_second"] = 1000 + rank;
    logged[name + "/waiting_share"] = 0.01 * rank;
  }
  s.know(logged, {"train/loss", "rank/1/waiting_share"});
  s.train(1);
  CHECK_THAT(
      s.writes.back(),
      Catch::StartsWith("\repoch 1/1  batch 2/100  loss 0.5000  64 samples/s  ETA 1:38\x1b[K\n"
                        "rank 0        1000 samples/s  waiting   0.0 %\x1b[K\n"
                        "rank 1        1001 samples/s  waiting   1.0 %\x1b[K\n"));
  CHECK_THAT(s.writes.back(), Catch::EndsWith("waiting   6.0 %\x1b[K\nand 3 more ranks\x1b[K"));
  rows = 5;
  s.now += 1s;
  s.train(2);
  CHECK_THAT(s.writes.back(), Catch::EndsWith("%\x1b[K\nand 9 more ranks\x1b[K"));
  rows = 1;
  s.now += 1s;
  s.train(3);
  CHECK_THAT(s.writes.back(), !Catch::Contains("rank"));
  s.line.finish(0);
  CHECK(s.writes.back() == "\r\x1b[K");
}

TEST_CASE("a program's lines of ranks are drawn anew over each other", "[progress]") {
  struct own_terminal {
    int ours = -1, theirs = -1;
    own_terminal() {
      const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
      REQUIRE(::openpty(&ours, &theirs, nullptr, nullptr, &size) == 0);
    }
    ~own_terminal() { ::close(ours), ::close(theirs); }
  };
  const own_terminal terminal;
  std::ostringstream to;
  const auto line = show_progress({.max_epochs = 1}, to, terminal.theirs)();
  const auto after = [&](const metrics& logged) {
    to.str({});
    line->on(seen::metrics{{}, logged, {}});
    while (to.str().empty())
      line->on(seen::progress{{.stage = stage::train, .epoch = 0, .batch = 1}, 100, 1});
    return to.str();
  };
  const metrics two{{"rank/0/waiting_share", 0.5}, {"rank/1/waiting_share", 0.5}};
  CHECK_THAT(after(two), Catch::StartsWith("\repoch 1/1") && Catch::Contains("\nrank 1"));
  CHECK_THAT(after(two), Catch::StartsWith("\x1b[2A\repoch 1/1"));
  CHECK_THAT(after({{"rank/2/waiting_share", 0.5}}), Catch::StartsWith("\x1b[2A\repoch 1/1"));
  CHECK_THAT(after(two), Catch::StartsWith("\x1b[3A\repoch 1/1"));
  to.str({});
  line->finish(0);
  CHECK(to.str() == "\x1b[3A\r\x1b[J\r\x1b[K");
}

TEST_CASE("without a terminal figures of ranks are not shown", "[progress]") {
  screen s{{.live = false, .epochs = 1}};
  s.train(0);
  s.know({{"rank/0/samples_per_second", 1000}}, {"rank/0/samples_per_second"});
  s.now += 10s;
  s.train(1);
  CHECK(s.writes.back() == "epoch 1/1  batch 2/100  6 samples/s  ETA 16:20\n");
}

TEST_CASE("a live line follows changes of the terminal's width", "[progress]") {
  std::size_t columns = 200;
  screen s{{.live = true, .columns = [&columns] { return columns; }, .epochs = 9}};
  s.know({{"train/loss", 0.5}, {"val/accuracy", 0.25}});
  s.train(0);
  s.now += 10s;
  s.train(1);
  const std::vector<std::pair<std::size_t, std::string>> expected{
      {100, "epoch 1/9  batch 3/100  loss 0.5000  val/accuracy 0.2500  N samples/s  ETA N"},
      {76, "epoch 1/9  batch 3/100  loss 0.5000  val/accuracy 0.2500  ETA N"},
      {60, "epoch 1/9  batch 3/100  loss 0.5000  ETA N"},
      {36, "epoch 1/9  batch 3/100  ETA N"},
      {30, "epoch 1/9  batch 3/100"},
      {12, "epoch 1/9"},
      {5, "epoc"},
  };
  for (const auto& [now, text] : expected) {
    columns = now;
    s.now += 200ms;
    s.train(2);
    CAPTURE(now);
    const auto shown = std::regex_replace(s.writes.back(),
                                          std::regex{"[0-9:]+( samples/s)|(ETA )[0-9:]+"}, "$2N$1");
    CHECK(shown == "\r" + text + "\x1b[K");
  }
}
