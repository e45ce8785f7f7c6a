// A job's events for a program with an event loop: what observers receive, one asynchronous wait at
// a time.
#pragma once

#include "troupe/observer.hpp"

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe {

/// What a stream keeps.
struct event_stream_options {
  bool hooks = false;        ///< every hook of every rank, too
  std::size_t limit = 4096;  ///< events kept for a slow reader
};

/// The events of one job, which has the stream in `job_context::events`. Events are kept, in order,
/// from the job's start on. A slow reader never delays the job: at the limit the oldest progress is
/// dropped first, then the oldest hook. Thread-safe.
///
///   while (const auto event = co_await events->async_next(use_awaitable)) ...
class event_stream {
public:
  /// The completion signature of async_next.
  using signature = void(observation_ptr);

  /// `executor`: where completion handlers run unless they have an executor of their own.
  explicit event_stream(boost::asio::any_io_executor executor, event_stream_options how = {});
  ~event_stream();
  event_stream(const event_stream&) = delete;
  event_stream& operator=(const event_stream&) = delete;

  /// The next event.
  /// 1. Completion signature: `void(troupe::observation_ptr)`, on the handler's associated executor
  ///    (the stream's by default), never inside the initiating call. Null after the last event,
  ///    and when the wait was cancelled; `ended` says which. The last event arrives before the job
  ///    completes.
  /// 2. Several waits are served in the order in which they began.
  /// 3. Cancellation: the associated slot, any type. No event is lost by it.
  template <boost::asio::completion_token_for<signature> Token>
  auto async_next(Token&& token) {
    return boost::asio::async_initiate<Token, signature>(
        [this](auto handler) { wait(std::move(handler)); }, token);
  }

  /// The job is over and every event was read.
  bool ended() const;
  /// Events that were dropped because the reader was slow. Once the job is over, those too that
  /// were dropped before they reached the stream.
  std::uint64_t dropped() const;

  /// For the session: an observer that fills the stream. Throws user_error when another job has the
  /// stream.
  observer_factory attach();
  /// For the session: no event follows. Idempotent.
  void end();

private:
  void wait(boost::asio::any_completion_handler<signature> handler);

  struct channel;
  std::shared_ptr<channel> channel_;
};

}  // namespace troupe
