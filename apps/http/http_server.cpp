#include "apps/http/http_server.hpp"

#include "apps/http/accept_loop.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#ifdef TROUPE_WITH_TLS
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#endif

#include <algorithm>
#include <array>
#include <list>
#include <optional>
#include <system_error>
#include <type_traits>

namespace troupe::program {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto as_awaitable = asio::as_tuple(asio::use_awaitable);
constexpr int quiet_max = 5;  // seconds without an event, after which a stream sends a comment
constexpr std::size_t dropped_max = 1 << 20;  // bytes that are read and dropped after a refusal

http_answer wrong(unsigned status, const std::string& why, const http_limits& limits) {
  if (!limits.json_errors) return {.status = status, .body = why + "\n"};
  using nlohmann::json;
  const auto text = json{{"error", why}}.dump(-1, ' ', false, json::error_handler_t::replace);
  return {.status = status, .body = text + "\n", .type = "application/json"};
}

// What a client gets that has sent something wrong; nothing for one that has gone or was slow.
std::optional<http_answer> refusal(const error_code& error, const http_limits& limits) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return wrong(431, fmt::format("the header of a request has at most {} bytes", limits.header),
                 limits);
  if (error == http::error::body_limit)
    return wrong(413,
                 limits.body == 0
                     ? std::string{"a request has no body"}
                     : fmt::format("the body of a request has at most {} bytes", limits.body),
                 limits);
  const bool gone = error == http::error::end_of_stream || error == http::error::partial_message;
  if (error.category() == http::make_error_code(http::error::bad_method).category() && !gone)
    return wrong(400, "this is no request of HTTP", limits);
  return std::nullopt;
}

}  // namespace

struct http_server::server : std::enable_shared_from_this<server> {
  // A connection as the server sees it.
  struct visit {
    virtual ~visit() = default;
    virtual void close() = 0;
    bool streams = false;
  };

  // A connection over one kind of stream. Its coroutine keeps it alive, and the server only weakly.
  template <class Stream>
  struct visit_over;

  server(asio::io_context& of, http_limits l, handler h) : loop(of), limits(l), how(std::move(h)) {}

  asio::io_context& loop;
  const http_limits limits;
  const handler how;
  std::shared_ptr<accept_loop<tcp>> doors;
  std::list<std::shared_ptr<visit>> open;  // the oldest one comes first
#ifdef TROUPE_WITH_TLS
  std::optional<asio::ssl::context> tls;
#endif

  void welcome(tcp::socket from);
  void make_room();
  void remove(const std::shared_ptr<visit>& one) { open.remove(one); }
  http_answer answer(const http_request& request) const {
    try {
      return how(request);
    } catch (const std::exception& error) {
      return wrong(500, std::string{"internal error: "} + error.what(), limits);
    }
  }
};

template <class Stream>
struct http_server::server::visit_over : visit, std::enable_shared_from_this<visit_over<Stream>> {
  visit_over(Stream s, std::weak_ptr<server> o, const http_limits& l)
      : stream(std::move(s)),
        of(std::move(o)),
        limits(l),
        buffer(l.header + l.body),
        later(stream.get_executor()) {}

  Stream stream;
  const std::weak_ptr<server> of;
  const http_limits limits;
  beast::flat_buffer buffer;
  asio::steady_timer later;

  auto& lowest() { return beast::get_lowest_layer(stream); }
  void close() override {
    lowest().close();
    later.cancel();
  }
  void has_time(std::chrono::seconds time) { lowest().expires_after(time); }

  void start() {
    asio::co_spawn(
        stream.get_executor(),
        [self = this->shared_from_this()]() -> asio::awaitable<void> {
          co_await self->serve();
          self->close();
          if (const auto all = self->of.lock()) all->remove(self);
        },
        asio::detached);
  }

  asio::awaitable<void> serve() {
    has_time(limits.wait);
#ifdef TROUPE_WITH_TLS
    if constexpr (!std::is_same_v<Stream, beast::tcp_stream>) {
      const auto [error] =
          co_await stream.async_handshake(asio::ssl::stream_base::server, as_awaitable);
      if (error) co_return;
    }
#endif
    for (bool more = true; more;) {
      has_time(limits.wait);
      more = co_await serve_one();
    }
  }

  // All of a request. A client that waits with the body is asked for it (RFC 9110, 10.1.1: not over
  // HTTP/1.0).
  asio::awaitable<error_code> read(http::request_parser<http::string_body>& parser) {
    parser.eager(true);
    for (bool asked = false; !parser.is_done();) {
      const auto [error, size] =
          co_await http::async_read_some(stream, buffer, parser, as_awaitable);
      if (error) co_return error;
      if (asked || !parser.is_header_done() || parser.is_done()) continue;
      asked = true;
      const auto& head = parser.get();
      if (head.version() < 11 || !beast::iequals(head[http::field::expect], "100-continue"))
        continue;
      std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      const auto [lost, sent] =
          co_await asio::async_write(stream, asio::buffer(go_on), as_awaitable);
      if (lost) co_return lost;
    }
    co_return error_code{};
  }

  // One request. False: the connection ends.
  asio::awaitable<bool> serve_one() {
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(limits.header));
    parser.body_limit(limits.body);
    if (const auto error = co_await read(parser)) {
      // GCC 12 destroys an aggregate twice that is made inside of a co_await.
      const http_request unknown{.method = "GET"};
      if (const auto wrong = refusal(error, limits)) co_await send(*wrong, unknown, false);
      co_return false;
    }
    const auto all = of.lock();
    if (!all) co_return false;
    const auto asked = request_of(parser.get());
    const auto answer = all->answer(asked);
    if (answer.events) {
      co_await send_events(*all, answer, asked);
      co_return false;
    }
    const bool keep = limits.keep_alive && parser.get().keep_alive();
    co_return co_await send(answer, asked, keep) && keep;
  }

  http_request request_of(const http::request<http::string_body>& from) const {
    http_request all;
    auto target = from.target();
    // The form that a client sends to a proxy: a scheme and an authority before the path.
    if (const auto scheme = target.find("://"); !target.starts_with('/') && scheme != target.npos)
      target.remove_prefix(std::min(target.find('/', scheme + 3), target.size()));
    const auto end = std::min(target.find('?'), target.size());
    all.method = std::string{from.method_string()};
    all.path = std::string{target.substr(0, end)};
    if (end < target.size()) all.query = std::string{target.substr(end + 1)};
    all.body = from.body();
    all.secure = !std::is_same_v<Stream, beast::tcp_stream>;
    all.header = [&from](std::string_view name) {
      return std::string{from[beast::string_view{name.data(), name.size()}]};
    };
    return all;
  }

  // False: the client did not read the answer.
  asio::awaitable<bool> send(const http_answer& what, const http_request& asked, bool keep) {
    http::response<http::string_body> out{static_cast<http::status>(what.status), 11};
    out.set(http::field::content_type, what.type);
    for (const auto& [name, value] : what.headers) out.set(name, value);
    out.keep_alive(keep);
    out.content_length(what.body.size());
    if (asked.method != "HEAD") out.body() = what.body;
    has_time(limits.write);
    const auto [error, size] = co_await http::async_write(stream, out, as_awaitable);
    if (!error && !keep) co_await end_in_order();
    co_return !error;
  }

  // Closing a connection from which bytes were not read would reset it, and the client might lose
  // the answer.
  asio::awaitable<void> end_in_order() {
    error_code ignored;
#ifdef TROUPE_WITH_TLS
    // Without it a client of TLS takes the end for an attack.
    if constexpr (!std::is_same_v<Stream, beast::tcp_stream>)
      co_await stream.async_shutdown(as_awaitable);
#endif
    lowest().socket().shutdown(tcp::socket::shutdown_send, ignored);
    std::array<char, 4096> dropped;
    for (std::size_t all = 0; all < dropped_max;) {
      const auto [error, size] =
          co_await lowest().async_read_some(asio::buffer(dropped), as_awaitable);
      if (error) co_return;
      all += size;
    }
  }

  asio::awaitable<void> send_events(server& all, const http_answer& what,
                                    const http_request& asked) {
    const auto streams = static_cast<std::size_t>(std::count_if(
        all.open.begin(), all.open.end(), [](const auto& one) { return one->streams; }));
    if (streams >= limits.streams) {
      const auto refused = wrong(503, "too many streams are open: close one", limits);
      co_await send(refused, asked, false);
      co_return;
    }
    this->streams = true;
    const auto source = what.events;
    source->wake_by([weak = this->weak_from_this()] {
      if (const auto self = weak.lock()) self->later.cancel();
    });
    std::string text =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n";
    for (int quiet = 0; lowest().socket().is_open();) {
      text += source->next();
      if (text.empty() && source->ended()) {
        has_time(limits.write);
        co_await end_in_order();
        break;
      }
      if (text.empty() && ++quiet < quiet_max) {
        later.expires_after(std::chrono::seconds{1});
        co_await later.async_wait(as_awaitable);
        continue;
      }
      // A comment, which shows whether the client is still there.
      if (text.empty()) text = ":\n\n";
      quiet = 0;
      has_time(limits.write);
      const auto [error, size] =
          co_await asio::async_write(stream, asio::buffer(text), as_awaitable);
      if (error) break;
      text.clear();
    }
  }
};

void http_server::server::make_room() {
  if (open.size() < limits.connections) return;
  const auto oldest =
      std::find_if(open.begin(), open.end(), [](const auto& one) { return !one->streams; });
  if (oldest == open.end()) return;
  const auto one = *oldest;
  open.erase(oldest);
  one->close();
}

void http_server::server::welcome(tcp::socket from) {
  make_room();
  error_code ignored;
  from.set_option(tcp::no_delay{true}, ignored);
  const auto begin = [this](auto one) {
    open.push_back(one);
    one->start();
  };
#ifdef TROUPE_WITH_TLS
  using secure = beast::ssl_stream<beast::tcp_stream>;
  if (tls)
    return begin(std::make_shared<visit_over<secure>>(
        secure{beast::tcp_stream{std::move(from)}, *tls}, weak_from_this(), limits));
#endif
  begin(std::make_shared<visit_over<beast::tcp_stream>>(beast::tcp_stream{std::move(from)},
                                                        weak_from_this(), limits));
}

namespace {

tcp::acceptor listening(asio::io_context& loop, const tcp::endpoint& at, std::size_t connections) {
  tcp::acceptor door{loop};
  door.open(at.protocol());
  door.set_option(tcp::acceptor::reuse_address(true));
  door.bind(at);
  door.listen(static_cast<int>(connections));
  return door;
}

}  // namespace

bool can_serve_tls() {
#ifdef TROUPE_WITH_TLS
  return true;
#else
  return false;
#endif
}

http_server::http_server(asio::io_context& loop, const tcp::endpoint& at, http_limits limits,
                         handler how, [[maybe_unused]] const tls_files* tls) try
    : server_(std::make_shared<server>(loop, limits, std::move(how))) {
#ifdef TROUPE_WITH_TLS
  if (tls) {
    auto& context = server_->tls.emplace(asio::ssl::context::tls_server);
    context.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
    context.use_certificate_chain_file(tls->certificate);
    context.use_private_key_file(tls->key, asio::ssl::context::pem);
  }
#endif
  server_->doors = std::make_shared<accept_loop<tcp>>(
      listening(loop, at, limits.connections), [weak = std::weak_ptr{server_}](tcp::socket from) {
        if (const auto self = weak.lock()) self->welcome(std::move(from));
      });
  server_->doors->start();
} catch (const boost::system::system_error& error) {
  throw std::system_error(error.code());
}

http_server::~http_server() {
  server_->doors->close();
  for (const auto& one : std::exchange(server_->open, {})) one->close();
}

std::uint16_t http_server::port() const { return server_->doors->endpoint().port(); }

}  // namespace troupe::program
