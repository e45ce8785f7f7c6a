// Marks the time in which code under test runs in a simulation: one event at a time, on one thread.
// During that time the code may use the outside only through its ports. The library troupe::guard
// checks this: in programs that link it (tests, never `troupe`) it replaces the C library's clocks,
// files, environment, entropy and threads, and records calls here. Without it nothing is checked.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace troupe::testing {

/// State of one thread, or of several that run one at a time.
struct delivery {
  bool watched = false;          ///< code under test is running
  const char* breach = nullptr;  ///< C name of the first call to the outside

  static delivery& here() { return lent_ ? *lent_ : own_; }
  /// This thread runs only while another one is blocked; its calls count as calls of that thread.
  static void lend(delivery& others) { lent_ = &others; }

private:
  static constinit thread_local delivery own_;
  static constinit thread_local delivery* lent_;
};
inline constinit thread_local delivery delivery::own_{};
inline constinit thread_local delivery* delivery::lent_ = nullptr;

/// While it lives, calls on this thread are those of code under test.
class delivering {
public:
  delivering() : on_(delivery::here()), before_(std::exchange(on_.watched, true)) {}
  ~delivering() { on_.watched = before_; }
  delivering(const delivering&) = delete;
  delivering& operator=(const delivering&) = delete;

private:
  delivery& on_;
  const bool before_;
};

/// While it lives, calls on this thread are those of the simulator: an adapter that needs a thread
/// or a file to simulate something.
class not_delivering {
public:
  not_delivering() : before_(std::exchange(delivery::here().watched, false)) {}
  ~not_delivering() { delivery::here().watched = before_; }
  not_delivering(const not_delivering&) = delete;
  not_delivering& operator=(const not_delivering&) = delete;

private:
  const bool before_;
};

/// Code under test called the outside without a port. The run ends, because it could not be
/// repeated.
class reached_outside : public std::exception {
public:
  explicit reached_outside(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

private:
  std::string what_;
};

}  // namespace troupe::testing
