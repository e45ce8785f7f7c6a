// Serves the metrics of a run over HTTP, for Prometheus: `--metrics-port`.
#pragma once

#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe::program {

/// The bytes of a request's header. A larger one is refused, and so is a body.
inline constexpr std::size_t metrics_request_max = 8192;
/// One connection more closes the oldest one.
inline constexpr std::size_t metrics_connections_max = 16;

/// Answers `GET /metrics` on 127.0.0.1 as long as `loop` runs. Each connection gets one answer and
/// at most 5 s: a client that sends slowly, or does not read, is closed and delays nothing. For one
/// thread.
class metrics_server {
public:
  /// Makes the text of an answer, in Prometheus' text format. Must not wait and not throw.
  using answer = std::function<std::string()>;

  /// `port` 0: any free port. Throws user_error (bad_configuration) if the port is not free.
  metrics_server(boost::asio::io_context& loop, std::uint16_t port, answer how);
  /// Closes all connections.
  ~metrics_server();
  metrics_server(const metrics_server&) = delete;
  metrics_server& operator=(const metrics_server&) = delete;

  std::uint16_t port() const;

private:
  struct server;
  std::shared_ptr<server> server_;
};

}  // namespace troupe::program
