// The checkpoints of a run: `checkpoints/step-00000937/`, ..., and the link `latest` beside them.
// Every function waits for the disk, is thread-safe, and throws user_error(errc::checkpoint) whose
// text begins with the path of the bad file.
#pragma once

#include "backends/checkpoint/checkpoint_folder.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace troupe {

/// Reads and verifies one checkpoint. The error of a bad one names the newest good one in the same
/// run, for which the others are read too.
snapshot read_checkpoint(const std::filesystem::path& folder);
/// The same check without returning the tensors.
manifest verify_checkpoint(const std::filesystem::path& folder);

/// See checkpoint_io::remove. Renames the folder to a hidden name, which the start of a run
/// removes, then removes it.
void remove_checkpoint(const std::filesystem::path& folder);

/// One entry of a run's list. `what` is meaningful if `damage` is empty. Damage that only a read of
/// all bytes would show is not detected.
struct listed_checkpoint {
  std::string path;
  std::int64_t step = 0;  ///< by its name
  manifest what;
  std::string damage;
  bool latest = false;  ///< the link names it; without a link, the newest undamaged one
};
/// Sorted by step. Empty if the run has none; throws if `run` is not a readable folder. `inspect`
/// may be that of another format; of what it throws a user_error is the damage.
std::vector<listed_checkpoint> list_checkpoints(
    const std::filesystem::path& run,
    const std::function<manifest(const std::filesystem::path&)>& inspect = inspect_checkpoint);

/// See checkpoint_io::latest.
found_checkpoint latest_checkpoint(const std::filesystem::path& run);

}  // namespace troupe
