// Goal: while the disk is slow, snapshots wait. A waiting snapshot that keep_best would keep is
// never replaced by a worse one, skipped snapshots are counted, and memory is bounded. A folder
// that cannot be made and a last checkpoint that was not written are reported.
// Method: the machine works on a simulated disk that is a value.
#include "tests/unit/actors/checkpoint_drive.hpp"

#include <algorithm>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace troupe::checkpointing;

namespace {

using steps = std::vector<std::int64_t>;

std::vector<checkpointing::written> reports(const checkpoint_drive& drive) {
  std::vector<checkpointing::written> all;
  for (const auto& a : drive.said)
    if (const auto* x = std::get_if<checkpointing::written>(&a)) all.push_back(*x);
  return all;
}

std::string last_words(const checkpoint_drive& drive) {
  std::ostringstream out;
  out << drive.said.back();
  return out.str();
}

}  // namespace

TEST_CASE("three snapshots at once: the best is written although a worse one follows",
          "[checkpoint]") {
  const bool maximize = GENERATE(false, true);
  auto policy = keep(1, 1);
  policy.maximize = maximize;
  const double worse = maximize ? 0 : 1;
  const double better = maximize ? 1 : 0;
  checkpoint_drive drive{policy};
  drive.run();
  drive.offer(40, worse);
  drive.offer(80, better);
  drive.offer(120, worse);
  drive.run();
  CHECK(drive.written() == steps{40, 80, 120});
  CHECK(drive.entries() == std::vector<std::string>{"latest", "step-00000080", "step-00000120"});
  CHECK(reports(drive).back().best == "run/checkpoints/step-00000080");
  CHECK(drive.held.empty());
}

TEST_CASE("a better snapshot that waits for its commit is not replaced by a worse one",
          "[checkpoint]") {
  checkpoint_drive drive{keep(1, 1)};
  drive.run();
  const std::vector<double> losses{3, 2, 1, 4, 5};
  for (std::size_t i = 0; i < losses.size(); ++i)
    drive.offer_early(static_cast<std::int64_t>(i) + 1, losses[i]);
  CHECK(drive.held.size() == 3);  // the oldest, the best and the newest
  drive.commit(5);
  drive.run();
  CHECK(drive.written() == steps{3, 5});
}

TEST_CASE("a waiting snapshot is replaced by a better one", "[checkpoint]") {
  checkpoint_drive drive{keep(1, 1)};
  drive.run();
  for (std::int64_t step = 1; step <= 50; ++step) {
    drive.offer(step, 1.0 / static_cast<double>(step));
    CHECK(drive.held.size() <= 2);
  }
  drive.run();
  CHECK(drive.written() == steps{1, 50});
}

TEST_CASE("the number of waiting snapshots is bounded for any keep_best", "[checkpoint]") {
  const auto best = GENERATE(1, 3, 1000);
  checkpoint_drive drive{keep(1, best)};
  drive.run();
  for (std::int64_t step = 1; step <= 50; ++step) {
    drive.offer(step, static_cast<double>(step * 7 % 50));
    CHECK(drive.held.size() <= 2 + std::min<std::size_t>(best, waiting_best_limit));
  }
  drive.run();
  const auto written = drive.written();
  CHECK(std::ranges::find(written, 50) != written.end());  // the loss at step 50 is 0
}

TEST_CASE("a report states how many steps it lags and how many snapshots were skipped",
          "[checkpoint]") {
  checkpoint_drive drive{keep(1, 0)};
  drive.run();
  for (std::int64_t step = 1; step <= 10; ++step) drive.offer(step, 0.1);
  drive.feed(committed{generation_id{1}, 12});
  drive.run();
  const auto all = reports(drive);
  REQUIRE(all.size() == 2);
  CHECK(all[0].step == 1);
  CHECK(all[0].behind == 11);
  CHECK(all[1].step == 10);
  CHECK(all[1].behind == 2);
  CHECK(all[0].skipped + all[1].skipped == 8);
}

TEST_CASE("a checkpoint folder that cannot be made is reported as a fatal failure at once",
          "[checkpoint]") {
  checkpoint_machine machine{{keep(1, 0), "c", "manifest.json", {}}};
  machine.on(begin{});
  const auto made = machine.on(answered{1, "there is no c", {}, false, 0});
  REQUIRE(made.size() == 1);
  CHECK(std::get<store>(made[0]).what == operation{storage_ops::make_folder{"c"}});
  auto refused = machine;
  const auto said = refused.on(answered{2, "permission denied", {}, false, 0});
  REQUIRE(said.size() == 1);
  CHECK(std::get<failed>(said[0]).what == failure_of::folder);
  CHECK(std::get<failed>(said[0]).text == "permission denied");
  CHECK(refused.phase() == phase::idle);
  CHECK(refused.on(flush{}) == std::vector<action>{flushed{true}});
  CHECK(machine.on(answered{2, "", {}, false, 0}).empty());
  CHECK(machine.on(flush{}) == std::vector<action>{flushed{false}});
}

TEST_CASE("flushed states whether the last checkpoint was written", "[checkpoint]") {
  const bool last_fails = GENERATE(false, true);
  checkpoint_drive drive{keep(1, 0)};
  drive.run();
  drive.fails = [&](std::uint64_t) { return !last_fails; };
  drive.offer(10, 0.1);
  drive.run();
  drive.fails = [&](std::uint64_t) { return last_fails; };
  drive.offer(20, 0.1);
  drive.run();
  drive.feed(flush{});
  CHECK(drive.failures().size() == 1);
  CHECK(last_words(drive) == (last_fails ? "flushed, lost" : "flushed"));
}
