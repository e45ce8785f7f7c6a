// A time limit for an operation on an event loop.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <utility>

namespace troupe::tcp {

/// Calls `passed` after a time, unless it is stopped or destroyed before. Then `passed` is never
/// called, although the time may have passed and the call may wait in the loop's queue already:
/// what `passed` refers to may be destroyed. Used and destroyed on the loop's thread.
class time_limit {
public:
  time_limit(boost::asio::io_context& loop, std::chrono::nanoseconds after,
             std::function<void()> passed)
      : timer_(loop, after), passed_(std::make_shared<std::function<void()>>(std::move(passed))) {
    timer_.async_wait([passed = passed_](const boost::system::error_code& stopped) {
      if (!stopped && *passed) (*passed)();
    });
  }
  ~time_limit() { stop(); }
  time_limit(const time_limit&) = delete;
  time_limit& operator=(const time_limit&) = delete;

  void stop() {
    *passed_ = nullptr;
    timer_.cancel();
  }

private:
  boost::asio::steady_timer timer_;
  std::shared_ptr<std::function<void()>> passed_;
};

}  // namespace troupe::tcp
