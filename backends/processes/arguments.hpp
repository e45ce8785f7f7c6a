// The command line of a rank's process and the descriptors that it inherits.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "backends/process_identity.hpp"

namespace troupe {

/// Descriptors of a rank's process: the link, the black box, then those of process_start.
inline constexpr int link_descriptor = 3;
inline constexpr int black_box_descriptor = 4;
inline constexpr int first_other_descriptor = 5;
/// In rank 0's process among placed ones: placed_options::keep. The link's is for the join info.
inline constexpr int kept_descriptor = 4;

struct rank_arguments {
  process_identity who;
  int parent = 0;       ///< process id of the launcher
  int descriptors = 0;  ///< those of process_start
};

/// Without the program's name.
std::vector<std::string> arguments_of(const rank_arguments& what);
/// None if they are not the arguments of a rank's process. Throws internal_error if only their
/// beginning is.
std::optional<rank_arguments> read_arguments(int count, const char* const* arguments);

/// The one argument before the parent's process id, of rank 0's process among placed ones.
inline constexpr const char* placed_word = "--troupe-placed-rank";

/// Whether this process has called `launcher_client_of`.
bool main_knows_ranks();

/// Called in a rank's process: makes the kernel end it when its parent ends for any reason.
void die_with(int parent);
/// Ignores these signals, which reach all processes of the job when they come from a terminal: only
/// the launcher acts on them. One that arrived earlier, while it was blocked, is discarded.
void leave_to_parent(std::initializer_list<int> signals);

}  // namespace troupe
