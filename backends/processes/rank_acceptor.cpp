#include "backends/processes/rank_acceptor.hpp"

#include <fmt/format.h>

#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "backends/processes/own_address.hpp"
#include "backends/processes/placed_socket.hpp"
#include "backends/tcp/frame.hpp"

namespace troupe {

namespace asio = boost::asio;
using ip_tcp = asio::ip::tcp;
using error_code = boost::system::error_code;

namespace {

// A rank's process identifies itself at once.
constexpr auto arrival_limit = std::chrono::seconds{5};
constexpr std::size_t strangers_beyond_ranks = 64;
// The pause after accept failed for lack of descriptors.
constexpr auto accept_pause = std::chrono::milliseconds{50};

}  // namespace

// A connection that has not identified itself yet.
struct rank_acceptor::stranger {
  explicit stranger(asio::io_context& loop) : socket(loop), limit(loop) {}
  ip_tcp::socket socket;
  asio::steady_timer limit;
  arrival_block said{};
};

rank_acceptor::rank_acceptor(asio::io_context& loop, const placed_options& options)
    : loop_(loop), options_(options), acceptor_(loop), pause_(loop) {
  const auto host =
      options.one_host ? asio::ip::address_v4::loopback() : asio::ip::address_v4::any();
  error_code error;
  acceptor_.open(ip_tcp::v4(), error);
  if (!error) acceptor_.bind({host, 0}, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  where_.hosts = options.one_host ? std::vector<std::string>{"127.0.0.1"} : own_addresses();
  if (error || where_.hosts.empty())
    throw user_error(errc::device,
                     fmt::format("the launcher's processes cannot come to this one: {}",
                                 error ? error.message() : "this host has no IPv4 address"));
  where_.port = acceptor_.local_endpoint().port();
  where_.secret = tcp::fresh_secret();
}

void rank_acceptor::accept(std::function<void(std::int32_t, ip_tcp::socket)> come) {
  come_ = std::move(come);
  next();
}

void rank_acceptor::next() {
  auto who = std::make_shared<stranger>(loop_);
  acceptor_.async_accept(who->socket, [this, who](const error_code& error) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      make_room();
      ask(who);
      return next();
    }
    pause_.expires_after(accept_pause);
    pause_.async_wait([this](const error_code& stopped) {
      if (!stopped) next();
    });
  });
}

void rank_acceptor::make_room() {
  const auto most = static_cast<std::size_t>(options_.world) + strangers_beyond_ranks;
  if (strangers_.size() < most) return;
  strangers_.begin()->second->socket.close();
  strangers_.erase(strangers_.begin());
}

void rank_acceptor::ask(const std::shared_ptr<stranger>& who) {
  const auto number = next_stranger_++;
  strangers_[number] = who;
  who->limit.expires_after(arrival_limit);
  who->limit.async_wait([who](const error_code& error) {
    if (!error) who->socket.close();
  });
  asio::async_read(who->socket, asio::buffer(who->said),
                   [this, who, number](const error_code& error, std::size_t) {
                     strangers_.erase(number);
                     who->limit.cancel();
                     if (!error && who->socket.is_open()) look_at(*who);
                   });
}

void rank_acceptor::look_at(stranger& who) {
  const auto rank = decode_arrival(who.said, where_.secret);
  if (!rank || *rank < 0 || *rank >= options_.world) return;
  set_up_placed_socket(who.socket.native_handle());
  // The timer's handler may still run; it then closes an empty socket.
  come_(*rank, std::move(who.socket));
}

}  // namespace troupe
