// Goal: the checkpoint machine writes in the right order, keeps what the policy says, stays within
// its memory bounds and survives failing operations.
// Method: the machine works on a simulated disk that is a value. The cases go from the plain one to
// the odd ones.
#include "tests/unit/actors/checkpoint_drive.hpp"

#include "troupe/failure.hpp"

#include <random>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace troupe::checkpointing;

namespace {

using names = std::vector<std::string>;
using steps = std::vector<std::int64_t>;

std::string words(const std::vector<action>& all) {
  std::ostringstream out;
  for (const auto& a : all) out << a << "\n";
  return out.str();
}

template <class T>
std::string shown(const T& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

}  // namespace

TEST_CASE("one commit performs its storage operations in the documented order", "[checkpoint]") {
  checkpoint_machine machine{{keep(1, 0), "c", "manifest.json", {}}};
  CHECK(words(machine.on(begin{})) == "1: list c\n");
  CHECK(words(machine.on(answered{1, "", {}, false, 0})).empty());
  CHECK(words(machine.on(committed{generation_id{1}, 20})).empty());
  CHECK(words(machine.on(offered{7, 10, generation_id{1}, false, false, 0})) == "open 7\n");
  CHECK(words(machine.on(opened{{"model", "manifest.json"}, ""})) ==
        "2: remove c/.step-00000010.tmp\n");
  const std::vector<std::string> expected{"3: make folder c/.step-00000010.tmp\n",
                                          "4: write c/.step-00000010.tmp/model\n",
                                          "5: write c/.step-00000010.tmp/manifest.json\n",
                                          "6: sync c/.step-00000010.tmp\n",
                                          "7: rename c/.step-00000010.tmp to c/step-00000010\n",
                                          "8: sync c\n",
                                          "9: link c/latest to step-00000010\n",
                                          "10: sync c\n",
                                          "written step 10 c/step-00000010 best \ndrop 7\n"};
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(words(machine.on(answered{i + 2, "", {}, false, 0})) == expected[i]);
  CHECK(machine.phase() == phase::idle);

  machine.on(offered{8, 20, generation_id{1}, false, false, 0});
  machine.on(opened{{"manifest.json"}, ""});
  for (std::uint64_t number = 11; number < 18; ++number)
    machine.on(answered{number, "", {}, false, 0});
  // A job that begins again reads the newest one, so it learns of it before the other is removed.
  CHECK(words(machine.on(answered{18, "", {}, false, 0})) ==
        "written step 20 c/step-00000020 best \n"
        "19: rename c/step-00000010 to c/.step-00000010.tmp\n");
  CHECK(words(machine.on(answered{19, "", {}, false, 0})) == "20: remove c/.step-00000010.tmp\n");
  CHECK(words(machine.on(answered{20, "", {}, false, 0})) == "drop 8\n");
}

TEST_CASE("the best checkpoint that is reported is none that is about to be removed",
          "[checkpoint]") {
  checkpoint_drive drive{keep(1, 0)};
  drive.offer(10, 0.1);
  drive.run();
  drive.offer(20, 0.9);
  drive.run();
  const auto last = std::get<checkpointing::written>(*(drive.said.end() - 2));
  CHECK(last.best == "run/checkpoints/step-00000020");
}

TEST_CASE("the policy decides which checkpoints are kept", "[checkpoint]") {
  checkpoint_drive drive{keep(2, 1)};
  const std::vector<std::pair<std::int64_t, double>> run{
      {10, 0.9}, {20, 0.5}, {30, 0.7}, {40, 0.8}, {50, 0.6}};
  for (const auto& [step, loss] : run) {
    drive.offer(step, loss);
    drive.run();
  }
  CHECK(drive.written() == steps{10, 20, 30, 40, 50});
  CHECK(drive.entries() == names{"latest", "step-00000020", "step-00000040", "step-00000050"});
  CHECK(drive.held.empty());
  const auto last = std::get<checkpointing::written>(*(drive.said.end() - 2));
  CHECK(last.path == "run/checkpoints/step-00000050");
  CHECK(last.best == "run/checkpoints/step-00000020");
}

TEST_CASE("a newer waiting snapshot replaces the one that waits for a write in flight",
          "[checkpoint]") {
  checkpoint_drive drive{keep(-1, 0)};
  for (const std::int64_t step : {10, 20, 30, 40}) drive.offer(step, 0.1);
  // the machine still lists the folder, so the first snapshot waited too
  CHECK(drive.held.size() == 1);
  drive.run();
  CHECK(drive.written() == steps{40});

  for (const std::int64_t step : {50, 60, 70}) drive.offer(step, 0.1);
  CHECK(drive.held.size() == 2);
  drive.run();
  CHECK(drive.written() == steps{40, 50, 70});
  CHECK(drive.held.empty());
}

TEST_CASE("a waiting snapshot that must be written is not replaced by a newer one",
          "[checkpoint]") {
  checkpoint_drive drive{keep(-1, 0)};
  drive.run();
  drive.offer(10, 0.1);
  drive.offer(20, 0.1, true);
  drive.offer(30, 0.1);
  drive.offer(40, 0.1);
  drive.run();
  CHECK(drive.written() == steps{10, 20, 40});
}

TEST_CASE("of several snapshots that must be written the newest stays", "[checkpoint]") {
  checkpoint_drive drive{keep(-1, 0)};
  drive.run();
  drive.offer(0, 0.1);
  for (std::int64_t step = 1; step <= 6; ++step) {
    drive.offer(step, 0.1, true);
    CHECK(drive.held.size() == 2);
  }
  drive.offer(7, 0.1);
  CHECK(drive.held.size() == 3);
  drive.run();
  CHECK(drive.written() == steps{0, 6, 7});
  CHECK(drive.failures().empty());
  CHECK(drive.held.empty());
}

TEST_CASE("a snapshot is not written before its step is committed", "[checkpoint]") {
  checkpoint_drive drive{keep(-1, 0)};
  drive.run();
  drive.offer_early(10, 0.1);
  drive.run();
  CHECK(drive.entries().empty());
  CHECK(shown(drive.machine) == "checkpoints idle; not committed: step 10");
  drive.commit(9);
  CHECK_FALSE(drive.in_flight);
  drive.commit(11);
  CHECK(drive.in_flight);
  drive.run();
  CHECK(drive.written() == steps{10});
  drive.offer_early(11, 0.1);  // its step is committed already
  drive.commit(10);            // a late commit changes nothing
  drive.run();
  CHECK(drive.written() == steps{10, 11});
  drive.offer_early(12, 0.1, true, 2);
  drive.commit(12, 1);  // this commit belongs to a past generation
  CHECK_FALSE(drive.in_flight);
  drive.commit(12, 2);
  drive.run();
  CHECK(drive.written() == steps{10, 11, 12});
}

TEST_CASE("uncommitted snapshots of an older generation are discarded", "[checkpoint]") {
  checkpoint_drive drive{keep(-1, 0)};
  drive.run();
  drive.offer_early(10, 0.1, true, 1);
  drive.commit(9, 2);
  CHECK(drive.held.empty());
  drive.offer_early(10, 0.1, true, 1);
  CHECK(drive.held.empty());
  drive.offer_early(10, 0.2, true, 2);
  drive.offer_early(11, 0.2, false, 2);
  drive.offer_early(10, 0.3, true, 3);
  CHECK(shown(drive.machine) == "checkpoints idle; not committed: step 10");
  drive.commit(10, 3);
  drive.run();
  CHECK(drive.written() == steps{10});
  CHECK(drive.machine.kept().front().monitor == 0.3);
}

TEST_CASE("snapshots wait for a commit: the oldest, the newest and the required ones stay",
          "[checkpoint]") {
  checkpoint_drive drive{keep(-1, 0)};
  drive.run();
  for (const std::int64_t step : {1, 2, 3}) drive.offer_early(step, 0.1);
  CHECK(shown(drive.machine) == "checkpoints idle; not committed: step 1; not committed: step 3");
  for (std::int64_t step = 4; step <= 9; ++step) drive.offer_early(step, 0.1, true);
  CHECK(drive.held.size() == 3);
  drive.commit(1);
  drive.run();
  drive.offer_early(10, 0.1);
  drive.commit(10);
  drive.run();
  CHECK(drive.written() == steps{1, 9, 10});
  CHECK(drive.held.empty());
}

TEST_CASE("flush discards snapshots whose step was never committed", "[checkpoint]") {
  checkpoint_drive drive{keep(-1, 0)};
  drive.offer(10, 0.1);
  drive.offer_early(11, 0.1);
  drive.offer_early(12, 0.1, true);
  drive.feed(flush{});
  drive.run();
  CHECK(drive.written() == steps{10});
  CHECK(drive.failures().empty());
  CHECK(drive.held.empty());
  CHECK(std::holds_alternative<checkpointing::flushed>(drive.said.back()));
}

TEST_CASE("the checkpoint that a run resumed from is not written again", "[checkpoint]") {
  checkpoint_drive first{keep(-1, 0)};
  for (const std::int64_t step : {10, 20}) {
    first.offer(step, 0.1);
    first.run();
  }
  checkpoint_drive second{keep(-1, 0), first.disk, 10};
  second.offer_early(10, 0.1, true);  // while the machine still lists the folder
  second.run();
  const auto looked = second.done;
  second.offer_early(10, 0.1, true);
  second.feed(flush{});
  second.run();
  CHECK(second.done == looked);
  CHECK(second.written().empty());
  CHECK(second.held.empty());
  CHECK(second.entries() == first.entries());  // the abandoned branch is still there

  // the checkpoint is not on this disk, so it is written
  checkpoint_drive elsewhere{keep(-1, 0), {}, 10};
  elsewhere.offer_early(10, 0.1, true);
  elsewhere.run();
  CHECK(elsewhere.written() == steps{10});
}

TEST_CASE("a snapshot of an older generation is dropped", "[checkpoint]") {
  checkpoint_drive drive{keep(-1, 0)};
  drive.run();
  drive.offer(10, 0.1, false, 2);
  drive.offer(20, 0.1, true, 1);
  drive.run();
  CHECK(drive.written() == steps{10});
  CHECK(drive.held.empty());
}

TEST_CASE("flushed is reported once no snapshot is pending", "[checkpoint]") {
  checkpoint_drive drive{keep(1, 0)};
  drive.feed(flush{});
  CHECK(drive.said.empty());
  drive.run();
  CHECK(words(drive.said) == "flushed\n");
  drive.said.clear();
  drive.feed(flush{});
  CHECK(words(drive.said) == "flushed\n");
  drive.said.clear();
  drive.offer(10, 0.1);
  drive.offer(20, 0.1);
  drive.feed(flush{});
  drive.run();
  CHECK(drive.written() == steps{10, 20});
  CHECK(std::holds_alternative<checkpointing::flushed>(drive.said.back()));
}

TEST_CASE("a new checkpoint of an existing step replaces it", "[checkpoint]") {
  checkpoint_drive drive{keep(1, 0)};
  drive.offer(10, 0.5);
  drive.run();
  drive.offer(10, 0.25);
  drive.run();
  CHECK(drive.written() == steps{10, 10});
  CHECK(drive.entries() == names{"latest", "step-00000010"});
  REQUIRE(drive.machine.kept().size() == 1);
  CHECK(drive.machine.kept()[0].monitor == 0.25);
}

TEST_CASE("a resumed run finds the existing checkpoints and applies its policy to them",
          "[checkpoint]") {
  checkpoint_drive first{keep(2, 1)};
  for (const auto& [step, loss] :
       std::vector<std::pair<std::int64_t, double>>{{10, 0.1}, {20, 0.5}, {30, 0.4}, {40, 0.3}}) {
    first.offer(step, loss);
    first.run();
  }
  REQUIRE(first.entries() == names{"latest", "step-00000010", "step-00000030", "step-00000040"});
  auto disk = first.disk;
  disk.perform(storage_ops::make_folder{"run/checkpoints/.step-00000050.tmp/deep"});

  checkpoint_drive second{keep(2, 1), disk, 40};
  second.run();
  CHECK(second.entries() == first.entries());
  REQUIRE(second.machine.kept() == first.machine.kept());
  second.offer(50, 0.2);
  second.run();
  CHECK(second.entries() == names{"latest", "step-00000010", "step-00000040", "step-00000050"});
}

TEST_CASE("the first commit of a resumed run removes the abandoned branch", "[checkpoint]") {
  checkpoint_drive first{keep(-1, 0)};
  for (const std::int64_t step : {10, 20, 30}) {
    first.offer(step, 0.1);
    first.run();
  }
  checkpoint_drive second{keep(-1, 0), first.disk, 10};
  second.run();
  CHECK(second.entries() == first.entries());
  second.offer(25, 0.1);
  second.run();
  CHECK(second.entries() == names{"latest", "step-00000010", "step-00000025"});
  second.offer(20, 0.1);  // the run goes back to an earlier step
  second.run();
  CHECK(second.entries() == names{"latest", "step-00000010", "step-00000020"});
}

TEST_CASE("a new run does not touch the checkpoints that it finds", "[checkpoint]") {
  checkpoint_drive first{keep(-1, 0)};
  first.offer(10, 0.1);
  first.run();
  checkpoint_drive second{keep(1, 0), first.disk};
  second.offer(5, 0.1);
  second.run();
  CHECK(second.entries() == names{"latest", "step-00000005", "step-00000010"});
}

TEST_CASE("an earlier checkpoint with a damaged manifest is kept without its metric",
          "[checkpoint]") {
  checkpoint_drive first{keep(-1, 0)};
  first.offer(10, 0.1);
  first.run();
  auto disk = first.disk;
  disk.perform(storage_ops::remove{"run/checkpoints/step-00000010/manifest.json"});
  checkpoint_drive second{keep(1, 1), disk, 10};
  second.run();
  REQUIRE(second.machine.kept().size() == 1);
  CHECK_FALSE(second.machine.kept()[0].has_monitor);
  second.offer(20, 0.1);
  second.run();
  CHECK(second.entries() == names{"latest", "step-00000020"});
}

TEST_CASE("a snapshot that cannot be encoded fails alone and the next one is written",
          "[checkpoint]") {
  checkpoint_machine machine{{keep(1, 0), "c", "manifest.json", {}}};
  machine.on(begin{});
  machine.on(answered{1, "", {}, false, 0});
  machine.on(committed{generation_id{1}, 20});
  machine.on(offered{1, 10, generation_id{1}, false, false, 0});
  CHECK(words(machine.on(opened{{}, "not UTF-8"})) == "failed step 10: not UTF-8\ndrop 1\n");
  CHECK(words(machine.on(offered{2, 20, generation_id{1}, false, false, 0})) == "open 2\n");
}

TEST_CASE("any single failed operation is reported and the next checkpoint succeeds",
          "[checkpoint]") {
  for (const bool replace : {false, true}) {
    checkpoint_drive before{keep(1, 0)};
    before.offer(10, 0.1);
    before.run();
    before.said.clear();
    before.done = 0;
    const std::int64_t next = replace ? 10 : 20;
    auto whole = before;
    whole.offer(next, 0.1);
    whole.run();
    CHECK(whole.done == (replace ? 10 : 12));
    for (std::uint64_t n = 0; n < whole.done; ++n) {
      INFO("operation " << n << (replace ? " of a replacement" : ""));
      auto drive = before;
      drive.fails = [n](std::uint64_t number) { return number == n; };
      drive.offer(next, 0.1);
      drive.run();
      const bool fine = drive.written() == steps{next};
      CHECK(fine == (n >= 10));  // a failed removal is not a failure of the write
      REQUIRE(drive.failures().size() == 1);
      CHECK((drive.failures().front().what == failure_of::removal) == fine);
      CHECK(drive.held.empty());
      drive.said.clear();
      drive.offer(30, 0.1);
      drive.run();
      CHECK(drive.written() == steps{30});
      CHECK(drive.failures().empty());
      for (const auto& name : drive.entries())
        if (name.starts_with(".")) CHECK(fine);  // the next start repeats a removal that failed
      checkpoint_drive restarted{keep(1, 0), drive.disk, 30};
      restarted.offer(40, 0.1);
      restarted.run();
      CHECK(restarted.entries() == names{"latest", "step-00000040"});
    }
  }
}

TEST_CASE("checkpoints that something else has removed are not removed again", "[checkpoint]") {
  checkpoint_drive drive{keep(2, 0)};
  for (const std::int64_t step : {10, 20}) {
    drive.offer(step, 0.1);
    drive.run();
  }
  for (const auto* name : {"step-00000010", "step-00000020"})
    REQUIRE(drive.disk.perform(storage_ops::remove{"run/checkpoints/" + std::string{name}})
                .text.empty());
  drive.said.clear();
  for (const std::int64_t step : {30, 40, 50}) {
    drive.offer(step, 0.1);
    drive.run();
  }
  CHECK(drive.failures().empty());
  CHECK(drive.written() == steps{30, 40, 50});
  CHECK(drive.entries() == names{"latest", "step-00000040", "step-00000050"});
}

TEST_CASE("a disk that stays full: failures are reported and the old checkpoint survives",
          "[checkpoint]") {
  checkpoint_drive drive{keep(1, 0)};
  drive.offer(10, 0.1);
  drive.run();
  const auto full_from = drive.done + 3;
  drive.fails = [=](std::uint64_t number) { return number >= full_from; };
  for (const std::int64_t step : {20, 30}) {
    drive.offer(step, 0.1);
    drive.run();
  }
  CHECK(drive.failures().size() == 2);
  CHECK_THAT(drive.failures()[0].text, Catch::Contains("stays until the next start"));
  CHECK(drive.written() == steps{10});
  CHECK(drive.machine.kept().size() == 1);
  drive.fails = {};
  drive.offer(40, 0.1);
  drive.run();
  CHECK(drive.written() == steps{10, 40});
}

TEST_CASE("late and repeated answers change nothing", "[checkpoint]") {
  checkpoint_drive drive{keep(1, 0)};
  drive.offer(10, 0.1);
  while (drive.machine.phase() != phase::publishing) REQUIRE(drive.step());
  const auto before = drive.machine;
  for (const std::uint64_t number :
       {std::uint64_t{0}, drive.in_flight->number - 1, drive.in_flight->number + 1}) {
    CHECK(drive.machine.on(answered{number, "late", {}, false, 0}).empty());
    CHECK(drive.machine == before);
  }
  drive.run();
  CHECK(drive.machine.on(answered{drive.done, "", {}, false, 0}).empty());
  CHECK_THROWS_AS(drive.machine.on(begin{}), internal_error);
  CHECK_THROWS_AS(drive.machine.on(opened{}), internal_error);
}

TEST_CASE("different states of the machine differ in value and digest and text", "[checkpoint]") {
  checkpoint_drive drive{keep(1, 1)};
  drive.offer(10, 0.5);
  std::vector<checkpoint_machine> seen;
  while (drive.in_flight) {
    for (const auto& earlier : seen) {
      CHECK_FALSE(earlier == drive.machine);
      CHECK(earlier.digest() != drive.machine.digest());
    }
    seen.push_back(drive.machine);
    CHECK(seen.back() == drive.machine);
    CHECK(seen.back().digest() == drive.machine.digest());
    drive.step();
  }
  CHECK(
      shown(seen[4]) ==
      "checkpoints writing step 10 at write run/checkpoints/.step-00000010.tmp/model.safetensors");
  CHECK(shown(drive.machine) == "checkpoints idle; kept: step 10 (0.5)");
}

// For random event sequences: each snapshot is released exactly once (the drive throws otherwise),
// the machine becomes idle, and the disk holds what the machine reports as kept.
TEST_CASE("random event sequences end idle with exactly the reported checkpoints on disk",
          "[checkpoint]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 draw{seed};
    checkpoint_drive drive{
        keep(static_cast<std::int32_t>(draw() % 4) - 1, static_cast<std::int32_t>(draw() % 3))};
    const auto rate = draw() % 12;
    drive.fails = [=](std::uint64_t number) {
      return rate < 6 &&
             std::mt19937{seed * 1000 + static_cast<std::uint32_t>(number)}() % 13 < rate;
    };
    std::int64_t step = 0;
    for (int i = 0; i < 60; ++i) {
      if (draw() % 3 == 0)
        drive.offer_early(step += draw() % 3, static_cast<double>(draw() % 100), draw() % 4 == 0);
      else if (draw() % 2 == 0)
        drive.commit(step - draw() % 3);
      else
        drive.step();
    }
    drive.commit(step);
    drive.run();
    CHECK(drive.held.empty());
    CHECK(drive.machine.phase() == phase::idle);
    drive.fails = {};
    drive.offer(step + 1, 0.5, true);
    drive.feed(flush{});
    drive.run();
    CHECK(std::holds_alternative<checkpointing::flushed>(drive.said.back()));
    CHECK(drive.written().back() == step + 1);
    const auto there = drive.entries();
    for (const auto& one : drive.machine.kept())
      CHECK(std::find(there.begin(), there.end(), checkpoint_folder_name(one.step)) != there.end());
  }
}
