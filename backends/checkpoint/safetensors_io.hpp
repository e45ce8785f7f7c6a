// Troupe's own checkpoint IO, behind the port.
#pragma once

#include "troupe/checkpoint.hpp"

#include <map>
#include <memory>
#include <string>

namespace troupe {

/// Safetensors files and a manifest (checkpoint_folder.hpp, run_checkpoints.hpp). `versions` of
/// libraries, by name, go into each manifest.
std::shared_ptr<const checkpoint_io> safetensors_checkpoints(
    std::map<std::string, std::string> versions);

}  // namespace troupe
