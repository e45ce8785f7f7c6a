// A time limit for an operation on an event loop.
#pragma once

#include "backends/running_clock.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

namespace troupe::tcp {

/// Calls `passed` after a time in which the process was not stopped, unless the limit is stopped or
/// destroyed before. Then `passed` is never called, although the time may have passed and the call
/// may wait in the loop's queue already: what `passed` refers to may be destroyed. Used and
/// destroyed on the loop's thread.
class time_limit {
public:
  using clock = running_clock;

  time_limit(
      boost::asio::io_context& loop, std::chrono::nanoseconds after, std::function<void()> passed,
      std::function<clock::time_point()> now = [] { return clock::now(); })
      : wait_(std::make_shared<waiting>(loop, std::move(passed), std::move(now))) {
    wait_->until = wait_->now() + after;
    go_on(wait_);
  }
  ~time_limit() { stop(); }
  time_limit(const time_limit&) = delete;
  time_limit& operator=(const time_limit&) = delete;

  void stop() {
    wait_->passed = nullptr;
    wait_->timer.cancel();
  }

private:
  struct waiting {
    waiting(boost::asio::io_context& loop, std::function<void()> call,
            std::function<clock::time_point()> reads)
        : timer(loop), passed(std::move(call)), now(std::move(reads)) {}
    boost::asio::steady_timer timer;
    std::function<void()> passed;  // empty: stopped
    std::function<clock::time_point()> now;
    clock::time_point until;
  };

  static void go_on(const std::shared_ptr<waiting>& one) {
    const auto rest = one->until - one->now();
    one->timer.expires_after(std::clamp(rest, clock::duration::zero(), clock::slice));
    one->timer.async_wait([one](const boost::system::error_code& stopped) {
      if (stopped || !one->passed) return;
      if (one->now() < one->until) return go_on(one);
      one->passed();
    });
  }

  std::shared_ptr<waiting> wait_;
};

}  // namespace troupe::tcp
