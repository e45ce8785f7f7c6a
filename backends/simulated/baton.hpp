// A thread that runs only while its owner is blocked: the two pass one baton. For code that waits
// in the middle of a call, in a simulation with one thread.
#pragma once

#include <semaphore.h>

#include <exception>
#include <functional>
#include <thread>

#include "troupe/detail/coverage.hpp"

namespace troupe {

/// A semaphore that blocks at once. The C++ library's semaphore yields several times first, which
/// costs time slices on a busy machine.
class sleeping_semaphore {
public:
  sleeping_semaphore() { sem_init(&held_, 0, 0); }
  ~sleeping_semaphore() { sem_destroy(&held_); }
  sleeping_semaphore(const sleeping_semaphore&) = delete;
  sleeping_semaphore& operator=(const sleeping_semaphore&) = delete;

  void acquire() {
    while (sem_wait(&held_) != 0) continue;  // interrupted by a signal
  }
  void release() { sem_post(&held_); }

private:
  sem_t held_;
};

/// The owner calls everything but `rest` and `inside`. A call runs in the thread, ordered with what
/// the owner does before and after. Its coverage points report to the owner's sink.
class baton_thread {
public:
  baton_thread();
  /// Abandons a resting call first.
  ~baton_thread();
  baton_thread(const baton_thread&) = delete;
  baton_thread& operator=(const baton_thread&) = delete;

  /// Runs `call` in the thread. Returns true when it has ended and false when it rests. Throws its
  /// exception. No call may be resting.
  bool run(std::function<void()> call);
  /// Continues the resting call; otherwise like `run`.
  bool go_on();
  bool resting() const { return resting_; }
  /// Ends the resting call: its `rest`, and every later one, throws generation_closed. Its
  /// exception is dropped.
  void abandon() noexcept;
  bool abandoned() const { return abandoned_; }

  /// Called within a call: returns the baton until `go_on`.
  void rest();
  /// Whether the caller is this thread.
  bool inside() const { return std::this_thread::get_id() == thread_.get_id(); }

private:
  void work();
  bool hand_over();

  sleeping_semaphore to_it_;
  sleeping_semaphore back_;
  std::function<void()> call_;
  coverage_sink* coverage_ = nullptr;  // the owner's
  std::exception_ptr thrown_;
  bool resting_ = false;
  bool abandoned_ = false;
  bool over_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace troupe
