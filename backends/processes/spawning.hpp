// Starts this program as a child process, and reports how it ended.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "backends/launcher.hpp"
#include "backends/local/file_descriptor.hpp"

namespace troupe {

/// Starts this program as a child that dies with the calling thread. This is set in the kernel
/// before the program begins, so that the child never outlives the thread.
///
/// The child has `inherited` as its descriptors from link_descriptor on, in this order, and nothing
/// else but the standard ones. SIGINT, SIGTERM and SIGHUP are blocked until it is ready
/// for them.
///
/// `words` are its arguments without the program's name. Returns the process, or 0 with `error`
/// set. The calling thread waits until the child runs the program; other threads do not.
pid_t start_child(const std::vector<file_descriptor>& inherited, std::vector<std::string> words,
                  int& error);

/// Converts the result of waitid, and of waitpid.
process_end end_of(const siginfo_t& info);
process_end end_of(int status);
/// Reaps a process that has ended, and returns how it ended. None: it lives.
std::optional<process_end> reap(int pidfd);

}  // namespace troupe
