// Which ranks of a job get another process, and which one. A part of the supervisor machine: each
// function says what follows from the members and the processes. docs/elastic.md has the rules.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "actors/membership.hpp"
#include "actors/placements.hpp"

namespace troupe {

bool lives_in(const membership& members, std::int32_t process);
/// Whether a member's process gets no rank any more.
bool any_leaves(const membership& members, const placements& places);
/// How many processes have members. Each rank that is a thread counts as one process.
std::int32_t working_processes(const membership& members, const placements& places);

/// Marks the members that move with the next generation: those whose process leaves, and with
/// `scales` those that the wanted number of processes moves. `holders` have the base. When all of
/// them would move, one stays and moves with the next change, because the others receive the state
/// from it.
void choose_moves(membership& members, placements& places, const std::vector<std::int32_t>& holders,
                  bool scales);

/// Ranks that lived together, and where each of them is to be started.
struct moved_group {
  std::vector<std::int32_t> started;                         ///< processes to start before
  std::vector<std::pair<std::int32_t, std::int32_t>> homes;  ///< rank, process
};
/// Homes for these ranks. Those of one process stay together where that is possible. Those that
/// leave a process which stays move in parts of the size that a process has. With `none_starts` a
/// new process is only the last resort.
std::vector<moved_group> new_homes(const membership& members, placements& places,
                                   const std::vector<std::int32_t>& ranks, bool none_starts);

}  // namespace troupe
