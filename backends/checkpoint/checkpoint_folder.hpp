// One checkpoint on disk: a folder with a manifest and the files it names. Only those entries are
// opened, and no link among them is followed. Every function waits for the disk, is thread-safe,
// and throws user_error(errc::checkpoint) whose text begins with the path of the bad file.
#pragma once

#include "backends/checkpoint/manifest.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/value.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

inline constexpr std::string_view model_file = "model.safetensors";
inline constexpr std::string_view optimizer_file = "optimizer.safetensors";

/// The files of a checkpoint, manifest last. Hashes every byte, copies none. `versions` goes into
/// the manifest.
std::vector<checkpoint_file> encode_checkpoint(const snapshot& what,
                                               const std::map<std::string, std::string>& versions);

/// Reads the manifest and checks that the files it names exist with their sizes. Reads no tensors.
manifest inspect_checkpoint(const std::filesystem::path& folder);

struct checkpoint_contents {
  manifest what;
  std::vector<tensor_blob> model;
  std::vector<tensor_blob> optimizer;
};
/// Reads and verifies everything: sizes, hashes, tensors against the manifest, weights_digest
/// (unless the manifest has none). The returned bytes are the ones that were verified.
checkpoint_contents load_checkpoint(const std::filesystem::path& folder);

}  // namespace troupe
