// The job's trace of hooks for ranks in other processes. Lanes there run at most so many hooks
// ahead of the trace, so they wait when it waits, as lanes of this process do. The launcher's
// thread, which receives the hooks, never waits.
#pragma once

#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "messages/link.hpp"

namespace troupe {

/// In the rank's process. Thread-safe.
class trace_gate {
public:
  static constexpr std::int64_t ahead_max = 256;

  /// A lane is about to send a hook. Waits while `ahead_max` of them are not traced. Throws
  /// std::runtime_error when the trace cannot be written.
  void enter();
  void traced(const hooks_traced& m);
  /// A generation ends: no lane waits until `close`.
  void open();
  void close();

private:
  std::mutex guard_;
  std::condition_variable news_;
  std::int64_t ahead_ = 0;
  bool open_ = false;
  std::string why_;
};

/// In the supervisor's process: runs what it is given in order, on a thread of its own. What waits
/// is bounded by `ahead_max` hooks for each process. Thread-safe.
class trace_queue {
public:
  /// `threads` false: runs it at once.
  explicit trace_queue(bool threads);
  /// Forgets what waits. If the trace is waiting for its reader, the thread is abandoned, like a
  /// lane that is stuck.
  ~trace_queue();
  void add(std::function<void()> what);

private:
  std::shared_ptr<std::atomic<bool>> busy_ = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<boost::asio::thread_pool> thread_;
};

}  // namespace troupe
