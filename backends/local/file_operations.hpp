// The storage port's operations on a file system.
#pragma once

#include "troupe/checkpoint.hpp"

#include <filesystem>

namespace troupe {

/// Does one operation now, waiting for the disk. `root` is absolute. Thread-safe for different
/// paths.
///
/// New content and links are created under a hidden name beside the path (`.NAME.part`) and
/// renamed. A folder is renamed onto another by exchanging the two and removing the old one; where
/// the file system cannot exchange, the old one is moved to such a hidden name first, and for a
/// moment nothing is at the path.
storage_result perform(const std::filesystem::path& root, const storage_op& op);

}  // namespace troupe
