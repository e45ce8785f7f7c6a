// Where processes of placed ranks come to: a listening socket, and a look at who connects.
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

/// Strangers are turned away: who does not know the secret, is no rank of this world, or has not
/// said who it is within five seconds. As many are looked at at once as there are ranks, and 64
/// more; when a further one connects, the one that has been silent for longest is turned away,
/// since a rank says at once who it is. So silent strangers keep no rank out and delay none. On the
/// thread of `loop`, which is stopped before this is destroyed.
class rank_acceptor {
public:
  /// Begins to listen; nobody is heard before `accept`. Throws user_error (device).
  rank_acceptor(boost::asio::io_context& loop, const placed_options& options);

  const join_info& where() const { return where_; }
  /// From now on: a rank's process has come. It may do so again, in another life.
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
