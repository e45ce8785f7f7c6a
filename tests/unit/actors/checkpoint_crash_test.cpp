// Goal: a crash or a power loss after any storage operation leaves a whole checkpoint, never older
// than the last one reported as written. A resumed run continues from it and removes all remains of
// the crash.
// Method: exhaustive over operations and, for a power loss, over the sets of folders that had
// reached the disk.
#include "backends/checkpoint/run_checkpoints.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/actors/checkpoint_drive.hpp"

#include <random>
#include <set>
#include <tuple>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace troupe::checkpointing;

namespace {

// Checks a disk as a crash left it. `reported` is the last step reported as written, if any.
void check_disk(const simulated_disk& disk, std::optional<std::int64_t> reported,
                const checkpoint_policy& policy) {
  static std::set<std::tuple<std::int32_t, std::int32_t, std::int64_t, std::uint64_t>> seen;
  if (!seen.emplace(policy.keep_last, policy.keep_best, reported.value_or(-1), disk.digest())
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

// The program dies here, and the disk keeps everything; or the machine loses power. With few
// changes that are not durable, every combination of losses is tried; with many, a sample. Returns
// the number of disks checked.
int lose_power(const simulated_disk& disk, std::optional<std::int64_t> reported,
               const checkpoint_policy& policy) {
  check_disk(disk, reported, policy);
  constexpr std::size_t exhaustive = 5;
  constexpr std::uint64_t some = 48;
  const auto pending = disk.pending();
  const auto count = pending <= exhaustive ? std::uint64_t{1} << pending : some;
  std::mt19937_64 draw{pending};
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto kept = pending <= exhaustive ? i : draw();
    INFO("power lost, " << pending << " changes not durable, kept " << kept);
    check_disk(disk.after_power_loss(kept), reported, policy);
  }
  return static_cast<int>(count);
}

// Cuts the drive after every operation and, inside each operation, after every file system call.
// Returns the number of disks checked.
int cut_everywhere(checkpoint_drive drive, const checkpoint_policy& policy) {
  int checked = 0;
  std::optional<std::int64_t> reported;
  do {
    if (!drive.written().empty()) reported = drive.written().back();
    if (drive.disk.perform(storage_ops::list{"run"}).error) continue;
    bool whole = false;
    for (std::size_t calls = 0; !whole; ++calls) {
      INFO("after operation " << drive.done << " and " << calls << " calls: " << drive.machine);
      auto disk = drive.disk;
      whole = !drive.next() || disk.perform_part(*drive.next(), calls);
      checked += lose_power(disk, reported, policy);
    }
  } while (drive.step());
  return checked;
}

}  // namespace

TEST_CASE("a crash after any storage operation leaves a whole checkpoint", "[checkpoint]") {
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

TEST_CASE("a crash while a checkpoint of the same step is replaced leaves a whole one",
          "[checkpoint]") {
  const auto policy = keep(1, 0);
  checkpoint_drive drive{policy};
  drive.offer(10, 0.2);
  drive.run();
  drive.offer(10, 0.1);
  CHECK(cut_everywhere(drive, policy) > 8);
}

TEST_CASE("a crash while an abandoned branch is removed leaves a whole checkpoint",
          "[checkpoint]") {
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
