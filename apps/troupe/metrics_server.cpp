#include "apps/troupe/metrics_server.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include <chrono>
#include <list>
#include <utility>

namespace troupe::program {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::seconds connection_time{5};

struct visit {
  explicit visit(tcp::socket from) : stream(std::move(from)) {
    request.header_limit(metrics_request_max);
    request.body_limit(0);
  }

  beast::tcp_stream stream;
  beast::flat_buffer buffer{metrics_request_max};
  http::request_parser<http::empty_body> request;
  http::response<http::string_body> response;
};

}  // namespace

// Its handlers hold it weakly: they do nothing after the metrics_server has gone.
struct metrics_server::server : std::enable_shared_from_this<server> {
  server(asio::io_context& loop, std::uint16_t port, answer h)
      : door(loop), later(loop), how(std::move(h)) {
    const tcp::endpoint place{asio::ip::address_v4::loopback(), port};
    error_code error;
    door.open(place.protocol(), error);
    if (!error) door.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) door.bind(place, error);
    if (!error) door.listen(static_cast<int>(metrics_connections_max), error);
    if (error)
      throw user_error(errc::bad_configuration,
                       fmt::format("cannot serve metrics on port {}: {}; choose another with "
                                   "--metrics-port, 0 for any",
                                   port, error.message()));
  }

  tcp::acceptor door;
  asio::steady_timer later;
  answer how;
  std::list<std::shared_ptr<visit>> open;  // the oldest one comes first

  void accept() {
    door.async_accept([weak = weak_from_this()](const error_code& error, tcp::socket from) {
      const auto self = weak.lock();
      if (!self || error == asio::error::operation_aborted) return;
      if (error) return self->accept_later();
      self->welcome(std::move(from));
      self->accept();
    });
  }

  // The program has no descriptor left.
  void accept_later() {
    later.expires_after(std::chrono::seconds{1});
    later.async_wait([weak = weak_from_this()](const error_code& error) {
      const auto self = weak.lock();
      if (self && !error) self->accept();
    });
  }

  void welcome(tcp::socket from) {
    if (open.size() == metrics_connections_max) close(open.front());
    const auto one = open.emplace_back(std::make_shared<visit>(std::move(from)));
    one->stream.expires_after(connection_time);
    http::async_read(one->stream, one->buffer, one->request,
                     [weak = weak_from_this(), one](const error_code& error, std::size_t) {
                       const auto self = weak.lock();
                       if (!self) return;
                       if (error) return self->refuse(one, error);
                       self->reply(one);
                     });
  }

  void close(const std::shared_ptr<visit>& one) {
    one->stream.close();
    open.remove(one);
  }

  // Only a client that has sent something wrong gets an answer.
  void refuse(const std::shared_ptr<visit>& one, const error_code& error) {
    if (error == http::error::header_limit || error == http::error::buffer_overflow)
      return send(one, http::status::request_header_fields_too_large,
                  fmt::format("a request has at most {} bytes\n", metrics_request_max));
    if (error == http::error::body_limit)
      return send(one, http::status::payload_too_large, "a request has no body\n");
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return send(one, http::status::bad_request, "this is no request of HTTP\n");
    close(one);
  }

  void reply(const std::shared_ptr<visit>& one) {
    const auto& asked = one->request.get();
    const auto target = asked.target().substr(0, asked.target().find('?'));
    if (asked.method() != http::verb::get && asked.method() != http::verb::head)
      return send(one, http::status::method_not_allowed, "use GET\n");
    if (target != "/metrics") return send(one, http::status::not_found, "there is only /metrics\n");
    one->response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    send(one, http::status::ok, how());
  }

  void send(const std::shared_ptr<visit>& one, http::status status, std::string text) {
    auto& answer = one->response;
    answer.result(status);
    if (answer.find(http::field::content_type) == answer.end())
      answer.set(http::field::content_type, "text/plain; charset=utf-8");
    if (status == http::status::method_not_allowed) answer.set(http::field::allow, "GET, HEAD");
    answer.content_length(text.size());
    if (one->request.get().method() != http::verb::head) answer.body() = std::move(text);
    answer.keep_alive(false);
    http::async_write(one->stream, answer,
                      [weak = weak_from_this(), one](const error_code&, std::size_t) {
                        const auto self = weak.lock();
                        if (!self) return;
                        error_code ignored;
                        one->stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
                        one->buffer.clear();
                        self->drop(one);
                      });
  }

  // Closing it at once would reset it, and the client might lose the answer.
  void drop(const std::shared_ptr<visit>& one) {
    one->stream.async_read_some(
        one->buffer.prepare(metrics_request_max),
        [weak = weak_from_this(), one](const error_code& error, std::size_t) {
          const auto self = weak.lock();
          if (!self) return;
          error ? self->close(one) : self->drop(one);
        });
  }
};

metrics_server::metrics_server(asio::io_context& loop, std::uint16_t port, answer how)
    : server_(std::make_shared<server>(loop, port, std::move(how))) {
  server_->accept();
}

metrics_server::~metrics_server() {
  error_code ignored;
  server_->door.close(ignored);
  while (!server_->open.empty()) server_->close(server_->open.front());
}

std::uint16_t metrics_server::port() const { return server_->door.local_endpoint().port(); }

}  // namespace troupe::program
