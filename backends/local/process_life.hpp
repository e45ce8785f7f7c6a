// Whether another process of this machine still runs code.
#pragma once

#include <cstdint>
#include <optional>

#include "backends/local/file_descriptor.hpp"

namespace troupe {

/// Identifies a process, also against a later one that gets the same number.
struct process_life {
  std::int32_t pid = 0;
  std::uint64_t birth = 0;    ///< the kernel's start time; 0 if it could not be read
  std::uint64_t numbers = 0;  ///< the namespace in which `pid` counts

  static process_life own();
  /// The life of a child of this process that is not reaped yet.
  static process_life of_child(std::int32_t pid);
  /// True if `pid` counts in the caller's namespace. If not, nothing below says anything.
  bool visible() const;
  /// A descriptor that becomes readable when it ends; none if it has ended or is not visible here,
  /// or if the caller has no free descriptors.
  file_descriptor watch() const;
  /// True if all its threads are ending, so that none of its code runs again. The kernel shows this
  /// long before `watch` does when it has gigabytes of memory to release.
  bool exiting() const;
  /// How it ends, as waitpid will report it. None while it is not exiting, when it is reaped, and
  /// for exit code 0, which looks like a code that this process may not read.
  std::optional<int> exiting_with() const;
  /// True if it has certainly ended, or is exiting. False if the caller has no free descriptors.
  bool over() const;
  friend bool operator==(const process_life&, const process_life&) = default;
};

}  // namespace troupe
