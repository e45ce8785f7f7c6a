// The routes of the service: JSON over HTTP, server-sent events, metrics, health, the live page.
// docs/service.md lists them.
#pragma once

#include "apps/http/http_server.hpp"
#include "apps/service/job_book.hpp"

#include <string>
#include <string_view>

namespace service {

/// The live page; made from apps/page and apps/service/page.
extern const std::string_view live_page;

struct access {
  std::string token;  ///< empty: none is asked for
  /// The names by which clients may call the server when no token is asked for. A page of another
  /// site cannot reach a loopback server under one of them.
  std::vector<std::string> hosts;
};

/// Answers every request; never throws for what a client can send.
troupe::program::http_answer answer(const troupe::program::http_request& asked, job_book& jobs,
                                    const access& who);

}  // namespace service
