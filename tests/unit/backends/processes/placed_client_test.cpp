// Goal: a process that a launcher has placed finds the first one among several addresses, also
// beside other programs that answer at some of them, and through signals.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <csignal>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "backends/launcher.hpp"
#include "backends/local/file_descriptor.hpp"
#include "backends/processes/join_info.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

file_descriptor door_at(const char* host, std::uint16_t port, int backlog = 8) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  ::inet_pton(AF_INET, host, &at.sin_addr);
  file_descriptor door{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int yes = 1;
  ::setsockopt(door.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(door.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
    return file_descriptor{};
  REQUIRE(::listen(door.get(), backlog) == 0);
  return door;
}

std::uint16_t port_of(const file_descriptor& door) {
  sockaddr_in at{};
  socklen_t size = sizeof at;
  REQUIRE(::getsockname(door.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  return ntohs(at.sin_port);
}

file_descriptor guest_of(const file_descriptor& door) {
  return file_descriptor{::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC)};
}

// As the first process does: reads who comes, and sends it home.
void dismiss(const file_descriptor& guest, const join_info& where) {
  arrival_block said;
  ::recv(guest.get(), said.data(), said.size(), MSG_WAITALL);
  const bool known = decode_arrival(said, where.secret).has_value();
  const auto block = encode_assignment(where.secret, {.shutdown = known, .who = {}});
  ::send(guest.get(), block.data(), block.size(), MSG_NOSIGNAL);
}

std::atomic<int> signals{0};
extern "C" void count_signal(int) { ++signals; }

// Whether a connection to this port has sent its first packet and has no answer.
bool is_dialing(std::uint16_t port) {
  std::ifstream table{"/proc/self/net/tcp"};
  for (std::string line; std::getline(table, line);) {
    std::istringstream words{line};
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state == "02" && std::stoul(remote.substr(remote.find(':') + 1), nullptr, 16) == port)
      return true;
  }
  return false;
}

}  // namespace

TEST_CASE("other programs at the first addresses: the next one is tried") {
  std::array<file_descriptor, 3> doors;
  join_info where{{"127.0.0.1", "127.0.0.2", "127.0.0.3"}, 0, tcp::fresh_secret()};
  while (!doors[2]) {  // another program may have the port
    doors[0] = door_at("127.0.0.1", 0);
    where.port = port_of(doors[0]);
    doors[1] = door_at("127.0.0.2", where.port);
    if (doors[1]) doors[2] = door_at("127.0.0.3", where.port);
  }
  std::thread others{[&] {
    guest_of(doors[0]).reset();
    const auto stranger = guest_of(doors[1]);
    assignment_block block{};
    ::send(stranger.get(), block.data(), block.size(), MSG_NOSIGNAL);
    dismiss(guest_of(doors[2]), where);
  }};
  CHECK_FALSE(placed_client(1, to_text(where)));
  for (const auto& door : doors) ::shutdown(door.get(), SHUT_RDWR);  // for a client that gives up
  others.join();
}

TEST_CASE("no address leads to the first process: the error has the reason of each") {
  auto door = door_at("127.0.0.1", 0);
  join_info where{{"127.0.0.1", "127.0.0.2"}, port_of(door), tcp::fresh_secret()};
  std::thread stranger{[&] { guest_of(door).reset(); }};
  CHECK_THROWS_WITH(placed_client(1, to_text(where)),
                    Catch::Contains("127.0.0.1:") &&
                        Catch::Contains("it has ended the connection") &&
                        Catch::Contains("127.0.0.2:") && Catch::Contains("Connection refused"));
  stranger.join();
}

TEST_CASE("a signal while a process connects: it connects nevertheless") {
  struct sigaction counts {};
  counts.sa_handler = count_signal;
  struct sigaction before {};
  ::sigaction(SIGUSR1, &counts, &before);
  const auto door = door_at("127.0.0.1", 0, 0);
  const join_info where{{"127.0.0.1"}, port_of(door), tcp::fresh_secret()};
  // Its queue is full with this one, so the next one waits for its answer.
  const file_descriptor first{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in at{};
  socklen_t size = sizeof at;
  ::getsockname(door.get(), reinterpret_cast<sockaddr*>(&at), &size);
  REQUIRE(::connect(first.get(), reinterpret_cast<const sockaddr*>(&at), size) == 0);
  std::string error;
  std::thread client{[&] {
    try {
      if (placed_client(1, to_text(where))) error = "an assignment";
    } catch (const user_error& why) {
      error = why.what();
    }
  }};
  while (!is_dialing(where.port)) std::this_thread::yield();
  ::pthread_kill(client.native_handle(), SIGUSR1);
  while (signals == 0) std::this_thread::yield();
  guest_of(door).reset();
  std::thread host{[&] { dismiss(guest_of(door), where); }};
  client.join();
  ::shutdown(door.get(), SHUT_RDWR);  // a client that has given up does not come
  host.join();
  CHECK(error.empty());
  ::sigaction(SIGUSR1, &before, nullptr);
}
