// Checkpoints of the exhaustive search on a simulated disk: two small files each, which hold only
// their origin.
#pragma once

#include "backends/simulated/disk.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::testing {

inline constexpr const char* checkpoints_path = "run/checkpoints";
inline constexpr const char* data_file = "data";
inline constexpr const char* commit_file = "commit";  ///< written last

/// The origin of a checkpoint: the whole content of its files.
struct checkpoint_origin {
  std::int64_t run = 0;
  std::uint64_t generation = 0;
  std::int64_t step = 0;
  friend bool operator==(const checkpoint_origin&, const checkpoint_origin&) = default;
};
std::string to_string(const checkpoint_origin& of);
/// The content of either file.
std::shared_ptr<const std::vector<std::byte>> content_of(const checkpoint_origin& of);
/// The origin in a file; empty: the file is missing or torn.
std::optional<checkpoint_origin> origin_in(const simulated_disk& disk, const std::string& path);

/// Lower is better; the best is hardly ever the newest.
double monitor_of(std::int64_t step);

/// The origin of a complete checkpoint in that folder; empty: there is none.
std::optional<checkpoint_origin> whole(const simulated_disk& disk, const std::string& folder_name);
/// All names in the folder of checkpoints, and the target of `latest`.
struct checkpoint_names {
  std::vector<std::string> all;
  std::string latest;
};
checkpoint_names names_on(const simulated_disk& disk);
/// The checkpoint from which a run would resume.
std::optional<checkpoint_origin> resolved(const simulated_disk& disk);

}  // namespace troupe::testing
