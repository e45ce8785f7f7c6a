// Wakes the backend's thread when a rank's sockets are ready, but not while the rank's own lane
// serves them.
#pragma once

#include "backends/local/file_descriptor.hpp"

#include <atomic>
#include <string>
#include <string_view>

namespace troupe::tcp {

/// True if `error` says that the process or the machine may open no more files.
bool lacks_descriptors(int error);
/// What a user reads then. `what` is what would have been opened.
std::string no_descriptor(std::string_view what);

/// A set of sockets, and a timer. A socket reports once, then not until it is armed again. The set
/// also reports when the timer expires. Throws user_error when descriptors run out.
class poller {
public:
  poller();

  /// Readable when something is due. Watched by the backend's thread.
  int fd() const { return set_.get(); }
  /// Clears the reports.
  void take();

  void watch(int socket);
  void forget(int socket);
  void arm(int socket, bool backlog);

  /// Something is due in half a millisecond at the latest. Cheap: no thread wakes up before.
  /// Thread-safe.
  void soon() noexcept;
  /// Something is due at once. Thread-safe.
  void now() noexcept;

private:
  file_descriptor set_;
  file_descriptor timer_;
  std::atomic<bool> timer_set_{false};
};

/// Wakes a lane that sleeps at its sockets. Thread-safe but for `clear`.
class waker {
public:
  waker();
  int fd() const { return event_.get(); }
  void ring() noexcept;
  void clear() noexcept;

private:
  file_descriptor event_;
};

}  // namespace troupe::tcp
