// The search's checkpoints on a disk that is a value: two small files each, which say what they
// were made of and nothing else.
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

/// What a checkpoint was made of: its files hold nothing else.
struct checkpoint_origin {
  std::int64_t run = 0;
  std::uint64_t generation = 0;
  std::int64_t step = 0;
  friend bool operator==(const checkpoint_origin&, const checkpoint_origin&) = default;
};
std::string to_string(const checkpoint_origin& of);
/// The content of either file.
std::shared_ptr<const std::vector<std::byte>> content_of(const checkpoint_origin& of);
/// What a file says; none: it is not there, or torn.
std::optional<checkpoint_origin> origin_in(const simulated_disk& disk, const std::string& path);

/// Lower is better; the best is hardly ever the newest.
double monitor_of(std::int64_t step);

/// Of a whole checkpoint in that folder; none: there is none.
std::optional<checkpoint_origin> whole(const simulated_disk& disk, const std::string& folder_name);
/// All names in the folder of checkpoints, and the target of `latest`.
struct checkpoint_names {
  std::vector<std::string> all;
  std::string latest;
};
checkpoint_names names_on(const simulated_disk& disk);
/// What a run goes on from.
std::optional<checkpoint_origin> resolved(const simulated_disk& disk);

}  // namespace troupe::testing
