// Access to the process: its age, its standard streams, its environment.
#pragma once

#include "apps/troupe/console.hpp"
#include "troupe/ports.hpp"

#include <map>
#include <string>

namespace troupe::program {

/// Seconds since exec started this program, also when a shell called exec. The few milliseconds in
/// which the dynamic linker loads libraries do not count.
double process_age();

/// Standard output and error, and what standard error is.
console::writer standard_output();
console::writer standard_error();
console::terminal terminal_of_standard_error();

/// The environment's variables that start with TROUPE_. Only this function and the next one read
/// the environment.
std::map<std::string, std::string> troupe_variables();

/// What cluster environments are read from: variables, files, the name of this host.
cluster_facts cluster_facts_of_process();

}  // namespace troupe::program
