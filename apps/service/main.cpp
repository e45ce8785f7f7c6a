// A service that trains: jobs as JSON over HTTP, with a live page. Built on the public headers.
#include "apps/command_line/command_line.hpp"
#include "apps/command_line/descriptors.hpp"
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

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

namespace {

namespace asio = boost::asio;
using troupe::errc;
using troupe::user_error;
using namespace troupe::program;

constexpr const char* notes =
    R"(Examples:
  troupe_service --folder jobs --jobs 2
  troupe_service --address 0.0.0.0 --token-file token --certificate cert.pem --key key.pem
  curl -H 'Content-Type: application/json' -d '{"name": "first"}' localhost:8080/v1/jobs
  curl -N localhost:8080/v1/jobs/first/events
  curl -H 'Content-Type: application/json' -d '{}' localhost:8080/v1/jobs/first/stop

A browser shows the live page at http://localhost:8080/. Jobs, their checkpoints and their events
are in DIR/jobs; a service that starts there again goes on with the jobs that ran. An address that
other hosts can reach needs a token, which clients send as "Authorization: Bearer TOKEN". SIGINT
and SIGTERM stop all jobs with checkpoints, and then end the service; a second signal ends the jobs
at once. Exit codes: 0 stopped by a signal, 2 bad usage, 3 bad configuration, a folder in use or a
port that is taken.)";

// What standard error does not take is lost. The service goes on.
void say(const std::string& text) { std::fputs(text.c_str(), stderr); }

void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) == EOF || std::fflush(stdout) != 0)
    throw user_error(errc::job_failed,
                     fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

struct flags {
  std::string folder = "service";
  std::string address = "127.0.0.1";
  std::int64_t port = 8080;
  std::string token_file;
  tls_files tls;
  std::int64_t jobs = 4;
  bool manual = false;
};

// A credential of systemd is for this service alone. Its mode may show a group's right to read it,
// where the service gets that right from an access list.
bool is_credential(const std::string& path) {
  const char* all = std::getenv("CREDENTIALS_DIRECTORY");
  std::error_code none;
  return all && std::filesystem::equivalent(std::filesystem::path{path}.parent_path(), all, none);
}

std::string token_in(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw user_error(errc::bad_configuration, fmt::format("--token-file {}: {}", path, why));
  };
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(about.st_mode)) refuse("it is no regular file; name the file with the token");
  const mode_t others = is_credential(path) ? S_IRWXO : S_IRWXG | S_IRWXO;
  if ((about.st_mode & others) != 0)
    refuse(fmt::format("other users may read it; run chmod 600 {}", path));
  std::ifstream file{path};
  if (!file)
    refuse(
        fmt::format("{}; give it to the user of the service, or let systemd pass it on with "
                    "LoadCredential",
                    std::strerror(errno)));
  std::string token;
  file >> token;
  if (token.size() < 16)
    refuse(fmt::format("the token has {} characters, and 16 are needed", token.size()));
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
                             .keep_alive = true,
                             .json_errors = true};

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
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its limit (ulimit -f) is an error, as on a full disk
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
  say(fmt::format("serving on {}://{}:{}/\n", all.tls.certificate.empty() ? "http" : "https",
                  at.is_v6() ? "[" + at.to_string() + "]" : at.to_string(), server->port()));
  for (const auto& folder : jobs.left_out())
    say(fmt::format(
        "warning: {}: job.json is missing or damaged, or a file cannot be read: this job "
        "is left out\n",
        folder));
  loop.run();
  server.reset();
}

// Returns the text for --help, --version or --manual.
std::optional<std::string> read(flags& all, std::vector<std::string> arguments) {
  command_line line{{.name = "troupe_service",
                     .about = "Trains jobs that clients start over HTTP.",
                     .footer = notes,
                     .version = "troupe_service " TROUPE_VERSION}};
  const auto top = line.top();
  top.add("--folder", all.folder, "the folder of the jobs (service)").type_name("DIR");
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
  top.add_flag("--manual", all.manual, "print the manual page, for man");
  auto asked_for = line.read(std::move(arguments));
  if (all.manual && !asked_for) return line.manual().front().text;
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
  raise_descriptor_limit();
  try {
    flags all;
    const auto asked_for = read(all, {arguments + 1, arguments + count});
    if (!asked_for) run(all);
    print(asked_for.value_or(""));
  } catch (const user_error& error) {
    say(fmt::format("error: {}\n", error.what()));
    return static_cast<int>(error.code());
  } catch (const std::filesystem::filesystem_error& error) {  // as of a name that is too long
    say(fmt::format("error: --folder {}: {}\n", error.path1().string(), error.code().message()));
    return static_cast<int>(errc::bad_configuration);
  }
  return 0;
}
