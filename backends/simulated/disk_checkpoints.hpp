// Checkpoint IO on a simulated disk: small binary files with checksums, by the same rules as the
// real one (last file commits, the link first, then the newest good one), at a hundredth of its
// cost.
#pragma once

#include <functional>
#include <memory>

#include "backends/simulated/simulated_storage.hpp"
#include "troupe/checkpoint.hpp"

namespace troupe {

/// `where` is asked whenever something is read. Not thread-safe: one world, one thread.
std::shared_ptr<const checkpoint_io> disk_checkpoints(
    std::function<const simulated_storage&()> where);

}  // namespace troupe
