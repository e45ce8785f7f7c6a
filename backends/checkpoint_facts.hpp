// What a checkpoint format says, which may be a user's own: a checkpoint's facts without its
// tensors, and the files of one that is to be written.
#pragma once

#include "troupe/checkpoint.hpp"

#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// The facts of the checkpoint in `folder`; none when its commit file cannot be read. Waits for the
/// disk. Thread-safe.
std::optional<checkpoint_facts> facts_at(const checkpoint_io& io, const std::string& folder);

/// The files of `what`, each of which can be written. Throws user_error(errc::checkpoint) if the
/// format returns none, a name that is no entry of a folder or is there twice, a null chunk, or
/// another last file than its commit file. Passes on what the format throws; thread-safe as it.
std::vector<checkpoint_file> files_of(const checkpoint_io& io, const snapshot& what);

}  // namespace troupe
