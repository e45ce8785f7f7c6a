// Accepts connections for the servers of our programs, over TCP or Unix sockets.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace troupe::program {

/// Hands each connection to `welcome` until it is closed. When the program has no descriptor left,
/// it tries again a second later. For one thread.
template <class Protocol>
class accept_loop : public std::enable_shared_from_this<accept_loop<Protocol>> {
public:
  using socket = typename Protocol::socket;
  using acceptor = typename Protocol::acceptor;

  accept_loop(acceptor door, std::function<void(socket)> welcome)
      : door_(std::move(door)), later_(door_.get_executor()), welcome_(std::move(welcome)) {}

  void start() {
    door_.async_accept(
        [weak = this->weak_from_this()](const boost::system::error_code& error, socket from) {
          const auto self = weak.lock();
          if (!self || error == boost::asio::error::operation_aborted) return;
          if (error) return self->start_later();
          self->welcome_(std::move(from));
          self->start();
        });
  }
  void close() {
    boost::system::error_code ignored;
    door_.close(ignored);
    later_.cancel();
  }
  typename Protocol::endpoint endpoint() const { return door_.local_endpoint(); }

private:
  void start_later() {
    later_.expires_after(std::chrono::seconds{1});
    later_.async_wait([weak = this->weak_from_this()](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (self && !error) self->start();
    });
  }

  acceptor door_;
  boost::asio::steady_timer later_;
  std::function<void(socket)> welcome_;
};

}  // namespace troupe::program
