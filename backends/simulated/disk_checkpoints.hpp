// Checkpoint IO on a simulated disk: small binary files with checksums, with the rules of the real
// one (the last file commits; first the link, then the newest good checkpoint), at a hundredth of
// its cost.
#pragma once

#include <functional>
#include <memory>

#include "backends/simulated/simulated_storage.hpp"
#include "troupe/checkpoint.hpp"

namespace troupe {

/// `where` is called for every read. Not thread-safe: one simulation, one thread.
std::shared_ptr<const checkpoint_io> disk_checkpoints(
    std::function<const simulated_storage&()> where);

}  // namespace troupe
