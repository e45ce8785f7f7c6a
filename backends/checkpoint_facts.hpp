// What a checkpoint in the file system says about itself, without its tensors.
#pragma once

#include "troupe/checkpoint.hpp"

#include <optional>
#include <string>

namespace troupe {

/// The facts of the checkpoint in `folder`; none when its commit file cannot be read. Waits for the
/// disk. Thread-safe.
std::optional<checkpoint_facts> facts_at(const checkpoint_io& io, const std::string& folder);

}  // namespace troupe
