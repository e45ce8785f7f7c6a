// Accepts the connections of ranks' processes that another launcher (mpirun) has placed.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "backends/launcher.hpp"
#include "backends/processes/join_info.hpp"

namespace troupe {

/// Closes a connection that does not know the secret, is not a rank of this world, or has not
/// identified itself within five seconds. Keeps at most (number of ranks + 64) such connections;
/// one more closes the one that has been silent longest, because a rank identifies itself at once.
/// So silent connections neither block nor delay a rank. Runs on the thread of `loop`, which is
/// stopped before this is destroyed.
class rank_acceptor {
public:
  /// Begins to listen; connections are read after `accept`. Throws user_error (device).
  rank_acceptor(boost::asio::io_context& loop, const placed_options& options);

  const join_info& where() const { return where_; }
  /// Calls `come` for each rank's process that connects, from now on. A rank may connect again, as
  /// another incarnation.
  void accept(std::function<void(std::int32_t rank, boost::asio::ip::tcp::socket)> come);

private:
  struct stranger;
  void next();
  void make_room();
  void ask(const std::shared_ptr<stranger>& who);
  void look_at(stranger& who);

  boost::asio::io_context& loop_;
  const placed_options options_;
  boost::asio::ip::tcp::acceptor acceptor_;
  join_info where_;
  std::function<void(std::int32_t, boost::asio::ip::tcp::socket)> come_;
  boost::asio::steady_timer pause_;
  std::map<std::uint64_t, std::shared_ptr<stranger>> strangers_;  // oldest first
  std::uint64_t next_stranger_ = 0;
};

}  // namespace troupe
