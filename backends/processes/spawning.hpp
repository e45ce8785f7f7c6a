// This program again, as a child: what it begins with, and how it ended.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "backends/launcher.hpp"

namespace troupe {

class open_file {
public:
  explicit open_file(int number = -1) : number_(number) {}
  open_file(open_file&& other) noexcept : number_(other.release()) {}
  open_file& operator=(open_file&&) = delete;
  ~open_file() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

private:
  int number_;
};

/// Starts this program as a child that dies with the calling thread: the kernel is told before the
/// program begins, so that there is no moment at which the child could stay behind.
///
/// The child has `inherited` as its descriptors from link_descriptor on, in this order, and nothing
/// else but the standard ones. SIGINT, SIGTERM and SIGHUP are blocked until it is ready
/// for them.
///
/// `words` are its arguments without the program's name. Returns the process, or 0 with `error`
/// set. The calling thread waits until the child runs the program; other threads do not.
pid_t start_child(const std::vector<open_file>& inherited, std::vector<std::string> words,
                  int& error);

/// What waitid said of it.
process_end end_of(const siginfo_t& info);
/// Waits for a process that has ended, and says how.
process_end reap(int pidfd);

}  // namespace troupe
