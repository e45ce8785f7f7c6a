// The checkpoints of a run: `checkpoints/step-00000937/`, ..., and the link `latest` beside them.
// Every function waits for the disk, is thread-safe, and throws user_error(errc::checkpoint) whose
// text begins with the path of what is wrong.
#pragma once

#include "backends/checkpoint/checkpoint_folder.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace troupe {

/// Reads and verifies one checkpoint. The error of a bad one names the newest good one beside it
/// (for which those are read, too).
snapshot read_checkpoint(const std::filesystem::path& folder);
/// The same, for who wants to know only whether it is good.
manifest verify_checkpoint(const std::filesystem::path& folder);

/// See checkpoint_io::remove: renamed to the hidden name that a run's start sweeps away, then
/// removed.
void remove_checkpoint(const std::filesystem::path& folder);

/// One entry of a run's list. `what` is meaningful when `damage` is empty; what only reading all
/// its bytes would show is not looked for.
struct listed_checkpoint {
  std::string path;
  std::int64_t step = 0;  ///< by its name
  manifest what;
  std::string damage;
  bool latest = false;  ///< the link names it
};
/// By step. Empty when the run has none; throws when `run` is not a folder that can be read.
std::vector<listed_checkpoint> list_checkpoints(const std::filesystem::path& run);

/// See checkpoint_io::latest.
found_checkpoint latest_checkpoint(const std::filesystem::path& run);

}  // namespace troupe
