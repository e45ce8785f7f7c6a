#include "apps/troupe/control_socket.hpp"

#include "apps/http/accept_loop.hpp"
#include "backends/local/file_descriptor.hpp"
#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

namespace troupe::program {

namespace asio = boost::asio;
using unix_stream = asio::local::stream_protocol;
using error_code = boost::system::error_code;

namespace {

constexpr int waiting_max = 16;  // connections that the kernel keeps before they are accepted

[[noreturn]] void refuse(const std::string& folder, const std::string& why) {
  throw user_error(errc::bad_configuration,
                   fmt::format("no control socket in {}: {}; the commands stop and scale do not "
                               "reach this run, signals do",
                               folder, why));
}

file_descriptor opened(const std::string& folder) {
  return file_descriptor{::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
}

// A socket's address has 108 bytes, and the path of a folder may be longer: this one leads through
// the open folder.
sockaddr_un address_in(const file_descriptor& folder) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto path = fmt::format("/proc/self/fd/{}/{}", folder.get(), control_file);
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

// The folder's lock is ours, so a socket there belongs to a program that has ended.
void remove_stale(const file_descriptor& place, const std::string& folder) {
  struct stat about {};
  if (::fstatat(place.get(), control_file, &about, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (!S_ISSOCK(about.st_mode))
    refuse(folder, fmt::format("{} is there and is no socket: remove it", control_file));
  ::unlinkat(place.get(), control_file, 0);
}

file_descriptor listening_in(const file_descriptor& place, const std::string& folder) {
  file_descriptor socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const auto address = address_in(place);
  // The file gets the mode of the socket: there is no moment in which others may connect.
  if (!socket || ::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), waiting_max) != 0)
    refuse(folder, std::strerror(errno));
  return socket;
}

struct connection {
  explicit connection(unix_stream::socket s) : socket(std::move(s)) {}

  unix_stream::socket socket;
  std::string in;
  std::string out;
};

using connections = std::list<std::shared_ptr<connection>>;

}  // namespace

// Its handlers hold it weakly: they do nothing after the control_socket has gone.
struct control_socket::server : std::enable_shared_from_this<server> {
  server(const std::string& folder, answer h) : place(opened(folder)), how(std::move(h)) {
    if (!place) refuse(folder, std::strerror(errno));
    remove_stale(place, folder);
  }

  file_descriptor place;
  std::shared_ptr<accept_loop<unix_stream>> door;
  answer how;
  connections open;  // the one that has been silent for longest comes first

  void accept(asio::io_context& loop, const std::string& folder) {
    unix_stream::acceptor listening{loop};
    listening.assign(unix_stream{}, listening_in(place, folder).release());
    door = std::make_shared<accept_loop<unix_stream>>(
        std::move(listening), [weak = weak_from_this()](unix_stream::socket from) {
          if (const auto self = weak.lock()) self->welcome(std::move(from));
        });
    door->start();
  }

  void welcome(unix_stream::socket from) {
    if (open.size() == control_connections_max) close(open.front());
    open.push_back(std::make_shared<connection>(std::move(from)));
    read_request(open.back());
  }

  void close(const std::shared_ptr<connection>& one) {
    error_code ignored;
    one->socket.close(ignored);
    open.remove(one);
  }

  void read_request(const std::shared_ptr<connection>& one) {
    asio::async_read_until(one->socket, asio::dynamic_buffer(one->in, control_request_max), '\n',
                           [weak = weak_from_this(), one](const error_code& error, std::size_t n) {
                             const auto self = weak.lock();
                             if (!self || !one->socket.is_open()) return;
                             if (error == asio::error::not_found) return self->refuse_too_long(one);
                             if (error) return self->close(one);
                             auto line = one->in.substr(0, n - 1);
                             one->in.erase(0, n);
                             self->reply(one, self->how(line));
                           });
  }

  void reply(const std::shared_ptr<connection>& one, std::string text, bool last = false) {
    open.remove(one);
    open.push_back(one);
    one->out = std::move(text) + "\n";
    asio::async_write(one->socket, asio::buffer(one->out),
                      [weak = weak_from_this(), one, last](const error_code& error, std::size_t) {
                        const auto self = weak.lock();
                        if (!self || !one->socket.is_open()) return;
                        if (error) return self->close(one);
                        last ? self->drop(one) : self->read_request(one);
                      });
  }

  // Closing it at once would reset it, and the client might lose the answer.
  void drop(const std::shared_ptr<connection>& one) {
    error_code ignored;
    one->socket.shutdown(unix_stream::socket::shutdown_send, ignored);
    one->in.resize(control_request_max);
    one->socket.async_read_some(asio::buffer(one->in), [weak = weak_from_this(), one](
                                                           const error_code& error, std::size_t) {
      const auto self = weak.lock();
      if (!self || !one->socket.is_open()) return;
      error ? self->close(one) : self->drop(one);
    });
  }

  void refuse_too_long(const std::shared_ptr<connection>& one) {
    reply(one,
          fmt::format(
              R"({{"error":"a request has at most {} bytes: send one JSON object in a line"}})",
              control_request_max),
          true);
  }
};

control_socket::control_socket(asio::io_context& loop, const std::string& folder, answer how)
    : server_(std::make_shared<server>(folder, std::move(how))) {
  server_->accept(loop, folder);
}

control_socket::~control_socket() {
  ::unlinkat(server_->place.get(), control_file, 0);
  server_->door->close();
  while (!server_->open.empty()) server_->close(server_->open.front());
}

namespace {

// What has been read up to the first line end. Throws when the program is silent.
std::string read_line(const file_descriptor& from, const std::function<void()>& silent) {
  std::string all;
  std::array<char, 4096> part;
  for (;;) {
    const auto size = ::recv(from.get(), part.data(), part.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) silent();
    if (size <= 0) return all;
    all.append(part.data(), static_cast<std::size_t>(size));
    if (const auto end = all.find('\n'); end != std::string::npos) return all.substr(0, end);
  }
}

}  // namespace

std::optional<std::string> ask_program(const std::string& folder, const std::string& request) {
  constexpr timeval limit{10, 0};
  const auto silent = [&] {
    throw user_error(errc::job_failed,
                     fmt::format("the program that runs in {} has not answered within {} s; is it "
                                 "stopped (SIGSTOP), or at its end? Try again, or send it SIGTERM",
                                 folder, limit.tv_sec));
  };
  const auto place = opened(folder);
  file_descriptor socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!place || !socket) return std::nullopt;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const auto address = address_in(place);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) silent();
    return std::nullopt;
  }
  const auto line = request + "\n";
  if (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) return std::nullopt;
  auto text = read_line(socket, silent);
  return text.empty() ? std::nullopt : std::optional{std::move(text)};
}

}  // namespace troupe::program
