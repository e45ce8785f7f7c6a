#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

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

namespace troupe {

namespace {

// Time-out of one address; the next address may answer.
constexpr timeval connect_limit{5, 0};

[[noreturn]] void gone(const std::string& why) {
  throw user_error(errc::membership, fmt::format("the process that the launcher started as rank 0 "
                                                 "cannot be reached: {}; see what it says",
                                                 why));
}

file_descriptor dial(const std::string& host, std::uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &to.sin_addr) != 1) return file_descriptor{};
  file_descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &connect_limit, sizeof connect_limit);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    return file_descriptor{};
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
    auto socket = dial(host, where.port);
    if (socket.get() < 0) {
      tried += fmt::format("{}{}:{}: {}", tried.empty() ? "" : ", ", host, where.port,
                           std::strerror(errno));
      continue;
    }
    assignment_block block;
    if (!send_all(socket.get(), encode_arrival(where.secret, rank)) ||
        !receive_all(socket.get(), block))
      gone("it has ended the connection");
    const auto assigned = decode_assignment(block, where.secret);
    if (!assigned) gone(fmt::format("{}:{} is another program", host, where.port));
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
