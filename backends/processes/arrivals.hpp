// Where processes of placed ranks come to: a listening socket, and a look at who connects.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <functional>
#include <memory>

#include "backends/launcher.hpp"
#include "backends/processes/summons.hpp"

namespace troupe {

/// Strangers are turned away: who does not know the secret, is no rank of this world, or has not
/// said who it is within five seconds. As many may be looked at at once as there are ranks, and a
/// few more. On the thread of `loop`, which is stopped before this is destroyed.
class arrivals {
public:
  /// Begins to listen; nobody is heard before `accept`. Throws user_error (device).
  arrivals(boost::asio::io_context& loop, const placed_options& options);

  const summons& where() const { return where_; }
  /// From now on: a rank's process has come. It may do so again, in another life.
  void accept(std::function<void(std::int32_t rank, boost::asio::ip::tcp::socket)> come);

private:
  struct stranger;
  void next();
  void ask(const std::shared_ptr<stranger>& who);
  void look_at(stranger& who);

  boost::asio::io_context& loop_;
  const placed_options options_;
  boost::asio::ip::tcp::acceptor acceptor_;
  summons where_;
  std::function<void(std::int32_t, boost::asio::ip::tcp::socket)> come_;
  std::size_t strangers_ = 0;
};

}  // namespace troupe
