// Streams of the late device. A stream is a thread with a queue. It runs a task as late as it may:
// when another thread waits for it, or for a later one. So code that forgets to wait reads old
// memory every time, whatever the timing.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

namespace troupe::testing {

/// Thread-safe. Lives as long as the process.
class late_stream {
public:
  static late_stream& of(const c10::Stream& stream);
  static c10::Stream make(c10::DeviceIndex device);
  /// All streams of a device that were used.
  static void wait_for_all(c10::DeviceIndex device);

  late_stream();

  /// The task's number, from 1.
  std::uint64_t submit(std::function<void()> task);
  /// The last task's number.
  std::uint64_t last() const;
  /// Whether this task is done. Asking lets it begin.
  bool done(std::uint64_t number);
  /// Throws what a task up to this one threw.
  void wait(std::uint64_t number);
  void wait() { wait(last()); }

private:
  void run();

  mutable std::mutex mutex_;
  std::condition_variable wanted_, finished_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t submitted_ = 0;
  std::uint64_t demanded_ = 0;
  std::uint64_t done_ = 0;
  std::exception_ptr error_;
};

/// A point in a stream.
struct late_event {
  late_stream* stream = nullptr;
  std::uint64_t number = 0;
};

/// Later tasks of `stream` run after the event: unless waits are switched off, which a test does to
/// see that they matter.
void wait_in(late_stream& stream, const late_event& event);
/// The calling thread, a stream's, goes on after the event: with the same exception.
void await(const late_event& event);
void switch_event_waits(bool on);
struct without_event_waits {
  without_event_waits() { switch_event_waits(false); }
  ~without_event_waits() { switch_event_waits(true); }
  without_event_waits(const without_event_waits&) = delete;
  without_event_waits& operator=(const without_event_waits&) = delete;
};

}  // namespace troupe::testing
