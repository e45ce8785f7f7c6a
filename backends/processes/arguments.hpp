// What a rank's process is called with, and where it finds what it inherits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/process_control.hpp"

namespace troupe {

/// Descriptors of a rank's process: the link, the black box, then those of process_start.
inline constexpr int link_descriptor = 3;
inline constexpr int black_box_descriptor = 4;
inline constexpr int first_other_descriptor = 5;

struct rank_arguments {
  rank_start who;
  int parent = 0;       ///< process id of the launcher
  int descriptors = 0;  ///< those of process_start
};

/// Without the program's name.
std::vector<std::string> arguments_of(const rank_arguments& what);
/// None when they are another program's or a user's. Throws internal_error when they begin like
/// ours and do not go on so.
std::optional<rank_arguments> read_arguments(int count, const char* const* arguments);

/// The one argument before the parent's process id, of rank 0's process among placed ones.
inline constexpr const char* placed_word = "--troupe-placed-rank";

/// Whether this process has called `launcher_client_of`.
bool main_knows_ranks();

/// In a rank's process. Nothing of it is to outlive the one that started it, however that ends.
void die_with(int parent);
/// A terminal sends its signals to all processes of the job; the launcher alone acts on them. Where
/// they are blocked until here, one that came earlier is forgotten now.
void leave_signals_to_parent();

}  // namespace troupe
