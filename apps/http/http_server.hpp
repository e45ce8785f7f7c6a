// A small HTTP server for our programs: bounded in bytes, time and connections, with or without
// TLS.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::program {

/// What one client may cost.
struct http_limits {
  std::size_t header = 8192;      ///< bytes of a request's header: else 431
  std::size_t body = 0;           ///< bytes of a request's body: else 413
  std::size_t connections = 16;   ///< one more closes the oldest one that is no stream
  std::size_t streams = 0;        ///< of these, at most so many streams: else 503
  std::chrono::seconds wait{5};   ///< for a whole request, from the connection or the last answer
  std::chrono::seconds write{5};  ///< for an answer, or a part of a stream, to be read
  bool keep_alive = false;        ///< several requests per connection
  bool json_errors = false;       ///< errors of the server are `{"error":"..."}`, else plain text
};

struct http_request {
  std::string method;
  std::string path;   ///< without the query
  std::string query;  ///< behind `?`
  std::string body;
  bool secure = false;  ///< over TLS

  /// The value of a header; empty: there is none.
  std::function<std::string(std::string_view name)> header;
};

/// What a stream of server-sent events sends. Called on the loop's thread.
class event_source {
public:
  virtual ~event_source() = default;
  /// The next text for a client that has had all before; empty: nothing now. A slow client is asked
  /// less often, so nothing is kept for it. Bounded by the source.
  virtual std::string next() = 0;
  /// No text follows.
  virtual bool ended() const = 0;
  /// To be called when there may be a next text; replaces the one before. Streams ask once a second
  /// besides.
  virtual void wake_by(std::function<void()> wake) = 0;
};

struct http_answer {
  unsigned status = 200;
  std::string body;
  std::string type = "text/plain; charset=utf-8";
  std::vector<std::pair<std::string, std::string>> headers{};
  /// Not null: the answer is this stream, without a body.
  std::shared_ptr<event_source> events{};
};

struct tls_files {
  std::string certificate;  ///< PEM, with its chain
  std::string key;          ///< PEM
};

/// Whether this build can serve TLS.
bool can_serve_tls();

/// Serves as long as `loop` runs. Malformed, slow and oversized requests cost their connection
/// only. A handler must not wait; what it throws becomes status 500. For one thread.
class http_server {
public:
  using handler = std::function<http_answer(const http_request&)>;

  /// Port 0: any free port. Throws std::system_error: the address is not free, or a TLS file is
  /// unusable.
  http_server(boost::asio::io_context& loop, const boost::asio::ip::tcp::endpoint& at,
              http_limits limits, handler how, const tls_files* tls = nullptr);
  /// Closes all connections.
  ~http_server();
  http_server(const http_server&) = delete;
  http_server& operator=(const http_server&) = delete;

  std::uint16_t port() const;

private:
  struct server;
  std::shared_ptr<server> server_;
};

}  // namespace troupe::program
