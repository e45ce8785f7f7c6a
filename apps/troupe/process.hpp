// What of this program belongs to the process: its age, its standard streams.
#pragma once

#include "apps/troupe/console.hpp"
#include "troupe/communicator.hpp"

#include <map>
#include <optional>
#include <string>

namespace troupe::program {

/// Seconds since this program began: since exec, also where a shell replaced itself by it. The few
/// milliseconds in which the dynamic linker loads libraries do not count.
double process_age();

/// Standard output and error, and what standard error is.
console::writer standard_output();
console::writer standard_error();
console::terminal terminal_of_standard_error();

/// The environment's variables that start with TROUPE_. Together with the next, the only look at
/// it.
std::map<std::string, std::string> troupe_variables();

/// Which rank mpirun made this process; nothing when it was not started by one. Understands Open
/// MPI's variables and those of PMI.
std::optional<placed_rank> rank_by_mpirun();
/// Whether all of mpirun's processes are on this host. The same variables; false when in doubt.
bool mpirun_on_one_host();

}  // namespace troupe::program
