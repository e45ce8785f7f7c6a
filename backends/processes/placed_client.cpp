#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <string_view>

#include "backends/processes/arguments.hpp"
#include "backends/processes/join_info.hpp"
#include "backends/processes/linked_client.hpp"
#include "backends/processes/placed_socket.hpp"
#include "backends/processes/spawning.hpp"
#include "backends/running_clock.hpp"

namespace troupe {

namespace {

// Of one address; the next address may answer.
constexpr std::chrono::seconds connect_limit{5};

[[noreturn]] void gone(const std::string& why) {
  throw user_error(errc::membership, fmt::format("the process that the launcher started as rank 0 "
                                                 "cannot be reached: {}; see what it says",
                                                 why));
}

// Of a socket that does not block: 0 or the error. A signal, or a stop of the process, changes
// nothing.
int connect_to(int socket, const sockaddr_in& to) {
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  const auto until = running_clock::now() + connect_limit;
  for (int ready = 0; ready <= 0;) {
    const auto rest = running_clock::next_look(until) - running_clock::now();
    pollfd made{socket, POLLOUT, 0};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(rest).count();
    ready = ::poll(&made, 1, static_cast<int>(std::max<std::int64_t>(ms, 0)));
    if (ready < 0 && errno != EINTR) return errno;
    if (ready <= 0 && running_clock::now() >= until) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// No descriptor: `error` says why.
file_descriptor dial(const std::string& host, std::uint16_t port, int& error) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  error = EINVAL;
  if (::inet_pton(AF_INET, host.c_str(), &to.sin_addr) != 1) return file_descriptor{};
  file_descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  error = socket ? connect_to(socket.get(), to) : errno;
  if (error != 0) return file_descriptor{};
  ::fcntl(socket.get(), F_SETFL, 0);  // from here on it blocks
  set_up_placed_socket(socket.get());
  return socket;
}

template <class Block>
bool send_all(int socket, const Block& block) {
  const auto sent = ::send(socket, block.data(), block.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(block.size());
}

template <class Block>
bool receive_all(int socket, Block& block) {
  for (std::size_t have = 0; have < block.size();) {
    const auto size = ::recv(socket, block.data() + have, block.size() - have, 0);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    have += static_cast<std::size_t>(size);
  }
  return true;
}

class side_of_placed : public linked_client {
public:
  side_of_placed(const process_identity& who, int socket) : linked_client(who, socket, true) {}

  const std::vector<int>& descriptors() const override { return none_; }
  void enter(std::int32_t, const hook&) noexcept override {}

private:
  std::vector<int> none_;
};

}  // namespace

void set_up_placed_socket(int socket) {
  const int yes = 1;
  // Keepalive detects a host that has vanished within half a minute.
  const int idle_seconds = 15;
  const int between_seconds = 5;
  const int times = 3;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &between_seconds, sizeof between_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

std::unique_ptr<launcher_client> placed_client(std::int32_t rank, const std::string& text) {
  leave_to_parent({SIGINT, SIGTERM, SIGHUP});
  const auto where = read_join_info(text);
  std::string tried;
  for (const auto& host : where.hosts) {
    const auto note = [&](std::string_view why) {
      tried += fmt::format("{}{}:{}: {}", tried.empty() ? "" : ", ", host, where.port, why);
    };
    int error = 0;
    auto socket = dial(host, where.port, error);
    if (!socket) {
      note(std::strerror(error));
      continue;
    }
    // An address of the other host, such as that of a bridge, may be another program's here.
    assignment_block block;
    if (!send_all(socket.get(), encode_arrival(where.secret, rank)) ||
        !receive_all(socket.get(), block)) {
      note("it has ended the connection");
      continue;
    }
    const auto assigned = decode_assignment(block, where.secret);
    if (!assigned) {
      note("it is another program");
      continue;
    }
    if (assigned->shutdown) return nullptr;
    return std::make_unique<side_of_placed>(assigned->who, socket.release());
  }
  gone(tried);
}

std::optional<std::string> placed_child(int count, const char* const* arguments) {
  constexpr int all = 3;
  if (count != all || std::string_view{arguments[1]} != placed_word) return std::nullopt;
  const std::string_view number{arguments[2]};
  int parent = 0;
  std::from_chars(number.data(), number.data() + number.size(), parent);
  die_with(parent);
  const file_descriptor from{link_descriptor};
  std::string text;
  std::array<char, 1024> part;
  for (;;) {
    const auto size = ::read(from.get(), part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) throw internal_error(fmt::format("{} is for the program's own use", placed_word));
    if (size == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace troupe
