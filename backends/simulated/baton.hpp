// A thread that runs only while its owner stands still: the two pass one baton. For code that
// waits in the middle of a call, in a world that has one thread of its own.
#pragma once

#include <semaphore.h>

#include <exception>
#include <functional>
#include <thread>

#include "troupe/detail/coverage.hpp"

namespace troupe {

/// Who waits for it sleeps at once. The C++ library's semaphore yields first, again and again: on a
/// machine with other work each yield is a time slice of somebody else's.
class sleeping_semaphore {
public:
  sleeping_semaphore() { sem_init(&held_, 0, 0); }
  ~sleeping_semaphore() { sem_destroy(&held_); }
  sleeping_semaphore(const sleeping_semaphore&) = delete;
  sleeping_semaphore& operator=(const sleeping_semaphore&) = delete;

  void acquire() {
    while (sem_wait(&held_) != 0) continue;  // a signal came in between
  }
  void release() { sem_post(&held_); }

private:
  sem_t held_;
};

/// The owner calls everything but `rest` and `inside`; what a call does happens in the thread, in
/// order with what the owner does before and after. Marks in it are heard by whoever hears the
/// owner's.
class baton_thread {
public:
  baton_thread();
  /// What rests is thrown out first, as `abandon` does.
  ~baton_thread();
  baton_thread(const baton_thread&) = delete;
  baton_thread& operator=(const baton_thread&) = delete;

  /// Does `call` in the thread. True when it has ended, false when it rests; throws what it threw.
  /// Nothing may rest.
  bool run(std::function<void()> call);
  /// Lets what rests go on; else as run.
  bool go_on();
  bool resting() const { return resting_; }
  /// What rests ends now: its `rest`, and every later one, throws generation_closed. What it threw
  /// is dropped.
  void abandon() noexcept;
  bool abandoned() const { return abandoned_; }

  /// Inside of a call: gives the baton back until `go_on`.
  void rest();
  /// Whether it is this thread that asks.
  bool inside() const { return std::this_thread::get_id() == thread_.get_id(); }

private:
  void work();
  bool hand_over();

  sleeping_semaphore to_it_;
  sleeping_semaphore back_;
  std::function<void()> call_;
  coverage_sink* heard_by_ = nullptr;  // the owner's
  std::exception_ptr thrown_;
  bool resting_ = false;
  bool abandoned_ = false;
  bool over_ = false;
  std::thread thread_;  // last: it uses what is above
};

}  // namespace troupe
