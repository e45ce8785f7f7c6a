#include "apps/troupe/metrics_server.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

namespace troupe::program {

namespace {

http_answer said(unsigned status, std::string text) {
  return {.status = status, .body = std::move(text)};
}

http_answer reply(const http_request& asked, const std::function<std::string()>& metrics) {
  if (asked.method != "GET" && asked.method != "HEAD") {
    auto refused = said(405, "use GET\n");
    refused.headers.emplace_back("Allow", "GET, HEAD");
    return refused;
  }
  if (asked.path != "/metrics") return said(404, "there is only /metrics\n");
  return {.body = metrics(), .type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace

std::unique_ptr<http_server> serve_metrics(boost::asio::io_context& loop, std::uint16_t port,
                                           std::function<std::string()> metrics) {
  try {
    return std::make_unique<http_server>(
        loop, boost::asio::ip::tcp::endpoint{boost::asio::ip::address_v4::loopback(), port},
        http_limits{}, [metrics = std::move(metrics)](const http_request& asked) {
          return reply(asked, metrics);
        });
  } catch (const std::system_error& error) {
    throw user_error(errc::bad_configuration,
                     fmt::format("cannot serve metrics on port {}: {}; choose another with "
                                 "--metrics-port, 0 for any",
                                 port, error.code().message()));
  }
}

}  // namespace troupe::program
