// What of this program belongs to the process: its age, its memory, its standard streams.
#pragma once

#include "apps/troupe/console.hpp"

#include <map>
#include <string>

namespace troupe::program {

/// Seconds since the process began, by the kernel's word (to 10 ms).
double process_age();

/// Keeps freed memory instead of giving it back: activations that are freed at each step would be
/// faulted in again, which costs two ranks of a convolutional network a quarter of their speed.
/// The price is that the process's memory does not shrink.
void keep_freed_memory();

/// Standard output and error, and what standard error is.
console::writer standard_output();
console::writer standard_error();
console::terminal terminal_of_standard_error();

/// The environment's variables that start with TROUPE_. The only look at it.
std::map<std::string, std::string> troupe_variables();

}  // namespace troupe::program
