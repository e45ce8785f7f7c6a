// Serves the metrics of a run over HTTP, for Prometheus: `--metrics-port`.
#pragma once

#include "apps/http/http_server.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe::program {

/// Answers `GET /metrics` on 127.0.0.1 as long as `loop` runs, within the default http_limits.
/// `metrics` makes the text, in Prometheus' text format; it must not wait and not throw. `port` 0:
/// any free port. Throws user_error (bad_configuration) if the port is not free.
std::unique_ptr<http_server> serve_metrics(boost::asio::io_context& loop, std::uint16_t port,
                                           std::function<std::string()> metrics);

}  // namespace troupe::program
