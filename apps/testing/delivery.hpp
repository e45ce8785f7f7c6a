// Around everything that code under test does in a simulated world: one event at a time, on one
// thread. While it lasts, that code reaches the outside through its ports only. What watches that
// is the library troupe::guard: it stands in front of the C library's clocks, files, environment,
// entropy and threads in the programs that link it (tests, never the `troupe` program), and tells
// here what was called. Where it is not linked nothing is watched.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace troupe::testing {

/// Of one thread, or of several that run one at a time.
struct delivery {
  bool watched = false;          ///< code under test runs
  const char* breach = nullptr;  ///< the first call to the outside, by its name in the C library

  static delivery& here() { return lent_ ? *lent_ : own_; }
  /// This thread runs only while another one stands still: what it calls, that one calls.
  static void lend(delivery& others) { lent_ = &others; }

private:
  static constinit thread_local delivery own_;
  static constinit thread_local delivery* lent_;
};
inline constinit thread_local delivery delivery::own_{};
inline constinit thread_local delivery* delivery::lent_ = nullptr;

/// The calls on this thread are code under test's, for as long as it lives.
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

/// The calls on this thread are the world's own again: an adapter that needs a thread or a file to
/// simulate something, inside a delivery.
class not_delivering {
public:
  not_delivering() : before_(std::exchange(delivery::here().watched, false)) {}
  ~not_delivering() { delivery::here().watched = before_; }
  not_delivering(const not_delivering&) = delete;
  not_delivering& operator=(const not_delivering&) = delete;

private:
  const bool before_;
};

/// Code under test called something of the outside that is no port. The run is over: it would not
/// be the same a second time.
class reached_outside : public std::exception {
public:
  explicit reached_outside(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

private:
  std::string what_;
};

}  // namespace troupe::testing
