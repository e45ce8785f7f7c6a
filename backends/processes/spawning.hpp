// This program again, as a child: what it begins with, and how it ended.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "backends/file_descriptor.hpp"
#include "backends/launcher.hpp"

namespace troupe {

/// Starts this program as a child that dies with the calling thread: the kernel is told before the
/// program begins, so that there is no moment at which the child could stay behind.
///
/// The child has `inherited` as its descriptors from link_descriptor on, in this order, and nothing
/// else but the standard ones. SIGINT, SIGTERM and SIGHUP are blocked until it is ready
/// for them.
///
/// `words` are its arguments without the program's name. Returns the process, or 0 with `error`
/// set. The calling thread waits until the child runs the program; other threads do not.
pid_t start_child(const std::vector<file_descriptor>& inherited, std::vector<std::string> words,
                  int& error);

/// What waitid said of it.
process_end end_of(const siginfo_t& info);
/// Waits for a process that has ended, and says how.
process_end reap(int pidfd);

}  // namespace troupe
