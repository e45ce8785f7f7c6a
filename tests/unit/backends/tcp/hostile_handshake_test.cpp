// Goal: damaged hellos and answers over real sockets do no harm. A rank accepts only connections
// with an undamaged hello, and no group waits forever.
#include "backends/tcp/connection.hpp"
#include "backends/tcp/frame.hpp"
#include "backends/tcp/tcp.hpp"
#include "tests/support/minutes.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

namespace troupe::tcp {
namespace {

using block_bytes = std::vector<std::byte>;

template <std::size_t size>
block_bytes damaged_block(const std::array<std::byte, size>& sound, std::mt19937_64& draw) {
  block_bytes block(sound.begin(), sound.end());
  for (auto hits = draw() % 3; hits > 0; --hits) {
    const auto at = draw() % block.size();
    switch (draw() % 4) {
      case 0: block[at] = static_cast<std::byte>(draw()); break;
      case 1: block[at] ^= static_cast<std::byte>(1 << draw() % 8); break;
      case 2: block.resize(std::max<std::size_t>(at, 1)); break;
      case 3: block.resize(block.size() + draw() % 300, static_cast<std::byte>(draw())); break;
    }
  }
  return block;
}

job_secret secret_of_the_job() {
  job_secret secret{};
  secret[7] = 99;
  return secret;
}

file_descriptor patient_socket(file_descriptor socket) {
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

// As many bytes at most, or until the other side has closed; a reset counts as that, silence does
// not.
block_bytes read_up_to(const file_descriptor& link, std::size_t most) {
  block_bytes all(most);
  std::size_t size = 0;
  while (size < most) {
    const auto came = recv(link.get(), all.data() + size, most - size, 0);
    if (came < 0) REQUIRE(errno == ECONNRESET);
    if (came <= 0) break;
    size += static_cast<std::size_t>(came);
  }
  all.resize(size);
  return all;
}

/// Rank 0, to whose acceptor damaged hellos are sent.
class visited_rank {
public:
  visited_rank() { open(); }

  void knock(std::mt19937_64& draw) {
    if (rank_->aborted()) open();  // a hello was accepted and its connection then closed
    const hello sound{.secret = secret_of_the_job(),
                      .job = job_id{1},
                      .generation = generation_id{generation_},
                      .world = 2,
                      .from = 1,
                      .to = 0,
                      .stream = static_cast<std::uint16_t>(draw() % 2),
                      .streams = 2};
    const auto said = damaged_block(encode(sound), draw);
    const file_descriptor link = patient_socket(file_descriptor{socket(AF_INET, SOCK_STREAM, 0)});
    const auto to = loopback(backend_.address().port);
    REQUIRE(connect(link.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    REQUIRE(send(link.get(), said.data(), said.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(said.size()));
    shutdown(link.get(), SHUT_WR);
    const auto received = read_up_to(link, answer_bytes);
    if (received.size() < answer_bytes) {
      REQUIRE(received.empty());
      return;
    }
    answer_block block;
    std::copy_n(received.begin(), block.size(), block.begin());
    const auto verdict = decode_answer(block);
    if (verdict.code != answer_code::welcome) {
      REQUIRE(verdict.secret == job_secret{});
      REQUIRE(read_up_to(link, 1).empty());
      return;
    }
    REQUIRE(said.size() >= hello_bytes);
    hello_block first;
    std::copy_n(said.begin(), first.size(), first.begin());
    auto near = decode_hello(first);
    REQUIRE(near.stream < 2);
    near.stream = sound.stream;  // the other connection would be accepted as well
    REQUIRE(near == sound);
  }
  /// Checks that an undamaged rank is still accepted.
  void meet() {
    open();
    const auto other = backend_.open(member(1));
    const auto met = other->barrier("met");
    rank_->barrier("met")->wait();
    met->wait();
  }

private:
  group_description member(std::int32_t rank) const {
    return {.job = job_id{1},
            .generation = generation_id{generation_},
            .rank = rank,
            .world = 2,
            .deadline = std::chrono::minutes{1}};
  }
  void open() {
    ++generation_;
    rank_ = backend_.open(member(0));
  }

  tcp_backend backend_{tcp_options{.secret = secret_of_the_job()}};
  std::uint64_t generation_ = 0;
  std::shared_ptr<communicator> rank_;
};

/// A listener at rank 0's address that is not rank 0. Rank 1 dials it and gets damaged answers.
class false_door {
public:
  false_door() {
    auto at = loopback(0);
    socklen_t size = sizeof at;
    REQUIRE(bind(door_.get(), reinterpret_cast<const sockaddr*>(&at), size) == 0);
    REQUIRE(listen(door_.get(), 64) == 0);
    REQUIRE(getsockname(door_.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    tcp_options options{.secret = secret_of_the_job(), .streams = 1};
    options.rendezvous = std::make_shared<tcp_fixed_addresses>(
        std::vector<tcp_address>{{"127.0.0.1", ntohs(at.sin_port)}, {"127.0.0.1", 0}});
    backend_ = std::make_unique<tcp_backend>(options);
  }

  void be_called(std::mt19937_64& draw) {
    ++generation_;
    const auto rank = backend_->open({.job = job_id{1},
                                      .generation = generation_id{generation_},
                                      .rank = 1,
                                      .world = 2,
                                      .deadline = std::chrono::seconds{20}});
    const auto waiting = rank->barrier("x");
    const answer first{.code = static_cast<answer_code>(draw() % 10),
                       .secret = secret_of_the_job(),
                       .text = "because"};
    const auto sound = encode(answer{.code = answer_code::left});
    auto words = damaged_block(encode(first), draw);
    auto end = waiting->poll();
    for (; end.status == work_status::pending; end = waiting->poll()) {
      pollfd ring{door_.get(), POLLIN, 0};
      if (poll(&ring, 1, 1) == 0) continue;
      const file_descriptor guest =
          patient_socket(file_descriptor{accept(door_.get(), nullptr, nullptr)});
      hello_block block;
      REQUIRE(recv(guest.get(), block.data(), block.size(), MSG_WAITALL) ==
              static_cast<ssize_t>(block.size()));
      REQUIRE(decode_hello(block).generation == generation_id{generation_});
      send(guest.get(), words.data(), words.size(), MSG_NOSIGNAL);
      // a further attempt gets the answer that the generation is over
      words.assign(sound.begin(), sound.end());
    }
    REQUIRE(end.status == work_status::aborted);
    REQUIRE_FALSE(end.text.empty());
  }

  /// The true answer, after so long a silence.
  void answer_late(std::chrono::milliseconds silence) {
    const auto rank =
        backend_->open({.job = job_id{1}, .generation = generation_id{1}, .rank = 1, .world = 2});
    const file_descriptor guest =
        patient_socket(file_descriptor{accept(door_.get(), nullptr, nullptr)});
    hello_block block;
    REQUIRE(read_up_to(guest, block.size()).size() == block.size());
    pollfd end{guest.get(), POLLIN, 0};
    REQUIRE(poll(&end, 1, static_cast<int>(silence.count())) == 0);
    const auto welcome = encode(answer{.secret = secret_of_the_job()});
    send(guest.get(), welcome.data(), welcome.size(), MSG_NOSIGNAL);
    const auto waiting = rank->barrier("x");
    CHECK(read_up_to(guest, 1).size() == 1);  // the call
    rank->abort("enough");
  }

private:
  file_descriptor door_{socket(AF_INET, SOCK_STREAM, 0)};
  std::unique_ptr<tcp_backend> backend_;
  std::uint64_t generation_ = 0;
};

TEST_CASE("damaged hellos and answers: none is accepted and no group waits forever") {
  visited_rank visited;
  false_door door;
  std::mt19937_64 draw{20261122};
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    visited.knock(draw);
    door.be_called(draw);
  }
  visited.meet();
}

// It counts the connection from its answer on, and would take the rank for lost.
TEST_CASE("a rank answers a hello after the limit of a handshake: the connection is still open") {
  false_door{}.answer_late(std::chrono::milliseconds{5500});
}

TEST_CASE("damaged hellos and answers for a minute: none is accepted and no group waits forever",
          "[.minutes][handshake]") {
  visited_rank visited;
  false_door door;
  testing::for_a_while([&](std::mt19937_64& draw) {
    visited.knock(draw);
    door.be_called(draw);
  });
  visited.meet();
}

}  // namespace
}  // namespace troupe::tcp
