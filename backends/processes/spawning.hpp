// This program again, as a child: what it begins with, and how it ended.
#pragma once

#include <signal.h>
#include <spawn.h>
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

/// What a child begins with: its descriptors (from link_descriptor on, in this order, nothing else
/// but the standard ones) and its signals (SIGINT and SIGTERM blocked until it is ready for them).
class spawn_plan {
public:
  explicit spawn_plan(const std::vector<open_file>& inherited);
  spawn_plan(const spawn_plan&) = delete;
  spawn_plan& operator=(const spawn_plan&) = delete;
  ~spawn_plan();

  /// Arguments without the program's name. The process, or 0 with `error` set.
  pid_t start(std::vector<std::string> words, int& error) const;

private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

/// What waitid said of it.
process_end end_of(const siginfo_t& info);
/// Waits for a process that has ended, and says how.
process_end reap(int pidfd);

}  // namespace troupe
