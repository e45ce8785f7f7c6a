// A service that trains: jobs as JSON over HTTP, with a live page. Built on the public headers.
#include "apps/command_line/command_line.hpp"
#include "apps/http/http_server.hpp"
#include "apps/service/api.hpp"
#include "apps/service/job_book.hpp"
#include "apps/service/models.hpp"

#include <troupe/trainer.hpp>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

namespace {

namespace asio = boost::asio;
using troupe::errc;
using troupe::user_error;
using namespace troupe::program;

struct flags {
  std::string folder = "service";
  std::string address = "127.0.0.1";
  std::int64_t port = 8080;
  std::string token_file;
  tls_files tls;
  std::int64_t jobs = 4;
};

std::string token_in(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0)
    throw user_error(errc::bad_configuration,
                     fmt::format("--token-file {}: the file is not there", path));
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw user_error(
        errc::bad_configuration,
        fmt::format("--token-file {}: other users may read it; run chmod 600 {}", path, path));
  std::string token;
  std::ifstream{path} >> token;
  if (token.size() < 16)
    throw user_error(errc::bad_configuration,
                     fmt::format("--token-file {}: the token has {} characters, and 16 are needed",
                                 path, token.size()));
  return token;
}

service::access access_of(const flags& all, const asio::ip::address& at) {
  service::access who;
  if (!all.token_file.empty()) who.token = token_in(all.token_file);
  if (!at.is_loopback() && who.token.empty())
    throw user_error(errc::bad_configuration,
                     fmt::format("--address {} can be reached from other hosts: give a token with "
                                 "--token-file",
                                 all.address));
  who.hosts = {"localhost", "[::1]", at.is_v6() ? "[" + at.to_string() + "]" : at.to_string()};
  return who;
}

// One client costs at most so much; docs/service.md has these numbers.
constexpr http_limits limits{.header = 8192,
                             .body = 65536,
                             .connections = 64,
                             .streams = 32,
                             .wait = std::chrono::seconds{10},
                             .write = std::chrono::seconds{10},
                             .keep_alive = true};

std::unique_ptr<http_server> served(asio::io_context& loop, const flags& all,
                                    const asio::ip::address& at, http_server::handler how) {
  const bool secure = !all.tls.certificate.empty();
  if (secure && !can_serve_tls())
    throw user_error(
        errc::bad_configuration,
        "--certificate: this build has no OpenSSL; install libssl-dev and build again");
  try {
    return std::make_unique<http_server>(
        loop, asio::ip::tcp::endpoint{at, static_cast<std::uint16_t>(all.port)}, limits,
        std::move(how), secure ? &all.tls : nullptr);
  } catch (const std::system_error& error) {
    throw user_error(errc::bad_configuration,
                     fmt::format("cannot serve on {} port {}: {}; see --address, --port, "
                                 "--certificate and --key",
                                 all.address, all.port, error.code().message()));
  }
}

void run(const flags& all) {
  if (all.folder.empty())
    throw user_error(errc::bad_configuration, "--folder is empty: name the folder of the jobs");
  boost::system::error_code error;
  const auto at = asio::ip::make_address(all.address, error);
  if (error)
    throw user_error(errc::bad_configuration,
                     fmt::format("--address {} is no IP address", all.address));
  const auto who = access_of(all, at);
  asio::io_context loop{1};
  service::job_book jobs{loop, all.folder, static_cast<std::size_t>(all.jobs)};
  auto server =
      served(loop, all, at, [&](const http_request& asked) { return answer(asked, jobs, who); });
  asio::signal_set signals{loop, SIGINT, SIGTERM};
  std::function<void()> listen = [&] {
    signals.async_wait([&](const boost::system::error_code& none, int) {
      if (none) return;
      jobs.drain([&] { loop.stop(); });
      listen();
    });
  };
  listen();
  jobs.resume_all();
  fmt::print(stderr, "serving on {}://{}:{}/\n", all.tls.certificate.empty() ? "http" : "https",
             at.is_v6() ? "[" + at.to_string() + "]" : at.to_string(), server->port());
  for (const auto& folder : jobs.left_out())
    fmt::print(stderr, "warning: {}: job.json is missing or damaged: this job is left out\n",
               folder);
  loop.run();
  server.reset();
}

// Returns the text for --help or --version.
std::optional<std::string> read(flags& all, std::vector<std::string> arguments) {
  command_line line{{.name = "troupe_service",
                     .about = "Trains jobs that clients start over HTTP.",
                     .footer = "",
                     .version = "troupe_service " TROUPE_VERSION}};
  const auto top = line.top();
  top.add("--folder", all.folder, "the jobs' folder (service)").type_name("DIR");
  top.add("--address", all.address, "the address to listen on (127.0.0.1)").type_name("IP");
  top.add("--port", all.port, "the port; 0: any that is free (8080)").type_name("N");
  top.add("--token-file", all.token_file, "the file with the token that clients send")
      .type_name("FILE");
  const auto certificate = top.add("--certificate", all.tls.certificate,
                                   "PEM file of a certificate and its chain: serves TLS")
                               .type_name("FILE");
  const auto key = top.add("--key", all.tls.key, "PEM file of its key").type_name("FILE");
  certificate.needs(key);
  key.needs(certificate);
  top.add("--jobs", all.jobs, "jobs that run at a time (4)").type_name("N");
  auto asked_for = line.read(std::move(arguments));
  check_range("--port", all.port, 0, 65535);
  check_range("--jobs", all.jobs, 1, 1000);
  return asked_for;
}

}  // namespace

int main(int count, char** arguments) {
  const auto recipe = [](const std::string& request) {
    return service::recipe_of(service::learning_of(nlohmann::json::parse(request)));
  };
  if (const auto code = troupe::run_rank_if_child(count, arguments, recipe)) ::_exit(*code);
  try {
    flags all;
    const auto asked_for = read(all, {arguments + 1, arguments + count});
    if (!asked_for) run(all);
    fmt::print("{}", asked_for.value_or(""));
  } catch (const user_error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::filesystem::filesystem_error& error) {  // as of a name that is too long
    fmt::print(stderr, "error: --folder {}: {}\n", error.path1().string(), error.code().message());
    return static_cast<int>(errc::bad_configuration);
  }
  return 0;
}
