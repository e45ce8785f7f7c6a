// Operations of a rank that take several steps, one after the other on a thread of their own.
#pragma once

#include "troupe/communicator.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace troupe::hier {

/// Runs the added operations in order. Thread-safe except `close`.
class steps : public std::enable_shared_from_this<steps> {
public:
  using body = std::function<work_result()>;
  /// When an operation fails, `failed` is called before any thread can see that it has ended.
  explicit steps(std::function<void(const work_result&)> failed) : failed_(std::move(failed)) {}

  /// Starts the thread. Call it before the first `add`: starting the thread at that `add` would
  /// queue it after all runnable threads and delay the first operation.
  void begin();
  /// Throws user_error when collectives::operations_max operations wait. `text` says what the
  /// operation is.
  work_ptr add(body what, std::string text);
  /// The text of the oldest operation that has not ended; empty if there is none.
  std::string oldest() const;
  void await_idle() const;
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }
  /// Ends the thread when no operation is open; the caller ensures that first. Nothing may be added
  /// any more; works stay valid.
  void close();

private:
  struct task;
  class waited;
  void run();
  void await(const std::function<bool()>& over) const;

  const std::function<void(const work_result&)> failed_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::shared_ptr<task>> tasks_;  // the first is under way
  bool stop_ = false;
  mutable std::atomic<bool> waiting_{false};
  std::thread thread_;
};

/// Waits; how it ended.
work_result end_of(const work_ptr& what);

}  // namespace troupe::hier
