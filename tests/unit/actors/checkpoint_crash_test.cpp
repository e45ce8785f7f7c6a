// Goal: after a crash or a loss of power behind any single storage operation the run's folder
// resolves to a whole checkpoint, never older than the last one reported as written, and a resumed
// run goes on from there and leaves nothing of the crash. Method: exhaustive over operations and,
// for a loss of power, over which folders had got to the disk.
#include "backends/checkpoint/run_checkpoints.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/actors/checkpoint_drive.hpp"

#include <set>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace troupe::checkpointing;

namespace {

checkpoint_policy keep(std::int32_t last, std::int32_t best) {
  checkpoint_policy policy;
  policy.keep_last = last;
  policy.keep_best = best;
  return policy;
}

// Checks one disk as a crash left it. `reported` is the last step said to be written, or none.
void check_disk(const memory_disk& disk, std::optional<std::int64_t> reported,
                const checkpoint_policy& policy) {
  static std::set<std::string> seen;
  if (!seen.insert(std::to_string(policy.keep_last) + std::to_string(policy.keep_best) +
                   std::to_string(reported.value_or(-1)) + disk.fingerprint())
           .second)
    return;
  temporary_folder folder;
  disk.unload(folder.path());
  if (!reported && list_checkpoints(folder.path() / "run").empty()) return;
  const auto found = latest_checkpoint(folder.path() / "run");
  const auto step = read_checkpoint(found.path).loop.steps;
  if (reported) CHECK(step >= *reported);

  checkpoint_drive resumed{policy, disk, step};
  resumed.offer(step + 100, 0.01);
  resumed.run();
  CHECK(resumed.written() == std::vector<std::int64_t>{step + 100});
  CHECK(resumed.failures().empty());
  std::set<std::string> expected{"latest"};
  for (const auto& one : resumed.machine.kept()) expected.insert(checkpoint_folder_name(one.step));
  const auto there = resumed.entries();
  CHECK(std::set<std::string>(there.begin(), there.end()) == expected);
}

// Cuts the drive behind every operation: the program dies (the disk keeps all), or power does.
// Returns the number of disks checked.
int cut_everywhere(checkpoint_drive drive, const checkpoint_policy& policy) {
  int checked = 0;
  std::optional<std::int64_t> reported;
  do {
    if (!drive.written().empty()) reported = drive.written().back();
    if (drive.disk.perform(storage_ops::list{"run"}).error) continue;
    INFO("behind operation " << drive.done << ": " << drive.machine);
    check_disk(drive.disk, reported, policy);
    const auto dirty = drive.disk.dirty_folders().size();
    REQUIRE(dirty < 6);
    for (std::uint64_t kept = 0; kept < std::uint64_t{1} << dirty; ++kept) {
      INFO("power lost, " << dirty << " folders not synced, kept " << kept);
      check_disk(drive.disk.after_power_loss(kept), reported, policy);
      ++checked;
    }
  } while (drive.step());
  return checked;
}

}  // namespace

TEST_CASE("a crash behind any operation leaves a whole checkpoint", "[checkpoint]") {
  const auto policy = GENERATE(keep(1, 0), keep(1, 1), keep(2, 1));
  checkpoint_drive drive{policy};
  drive.run();
  int checked = 0;
  for (const auto& [step, loss] :
       std::vector<std::pair<std::int64_t, double>>{{10, 0.2}, {20, 0.1}, {30, 0.3}, {40, 0.2}}) {
    drive.offer(step, loss);
    checked += cut_everywhere(drive, policy);
    drive.run();
  }
  CHECK(checked > 40);
}

TEST_CASE("a crash while a checkpoint replaces the only one of its step", "[checkpoint]") {
  const auto policy = keep(1, 0);
  checkpoint_drive drive{policy};
  drive.offer(10, 0.2);
  drive.run();
  drive.offer(10, 0.1);
  CHECK(cut_everywhere(drive, policy) > 8);
}

TEST_CASE("a crash while a given-up branch is removed", "[checkpoint]") {
  const auto policy = keep(-1, 0);
  checkpoint_drive first{policy};
  for (const std::int64_t step : {10, 20, 30}) {
    first.offer(step, 0.1);
    first.run();
  }
  checkpoint_drive second{policy, first.disk, 10};
  second.offer(15, 0.1);
  int checked = 0;
  bool moved = false;
  for (auto drive = second; drive.step(); ++checked) {
    temporary_folder folder;
    drive.disk.unload(folder.path());
    const auto found = latest_checkpoint(folder.path() / "run");
    const auto step = read_checkpoint(found.path).loop.steps;
    CHECK(step == (moved || step == 15 ? 15 : 30));
    CHECK(found.refused.empty());
    moved = moved || step == 15;
    if (!moved) CHECK(drive.entries().size() >= 4);  // the old branch is whole
  }
  CHECK(moved);
  CHECK(checked > 10);
}
