// Goal: the tcp adapter's promises beyond the port: which connections it accepts and refuses, and
// how it ends a group whose peer misbehaves after the handshake.
#include "backends/tcp/tcp.hpp"

#include "backends/tcp/connection.hpp"
#include "backends/tcp/frame.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <thread>

#include "tests/support/sanitized.hpp"
#include "tests/support/thrown.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using std::chrono::milliseconds;
using tcp::answer_code;

constexpr job_id job{7};
constexpr generation_id generation{3};

group_description member(std::int32_t rank, std::int32_t world = 2,
                         milliseconds deadline = milliseconds{0}) {
  return {.job = job, .generation = generation, .rank = rank, .world = world, .deadline = deadline};
}

tcp::hello greeting() {
  return {.job = job,
          .generation = generation,
          .world = 2,
          .from = 1,
          .to = 0,
          .streams = tcp_options{}.streams};
}

// A stranger at the door, with blocking calls that give up after a while.
file_descriptor connect_to(const tcp_address& at) {
  file_descriptor link{socket(AF_INET, SOCK_STREAM, 0)};
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  setsockopt(link.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(at.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(link.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  return link;
}

tcp::answer say(const file_descriptor& link, const tcp::hello_block& block) {
  REQUIRE(send(link.get(), block.data(), block.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(block.size()));
  tcp::answer_block reply;
  REQUIRE(recv(link.get(), reply.data(), reply.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(reply.size()));
  return tcp::decode_answer(reply);
}

bool closed_by_peer(const file_descriptor& link) {
  std::byte one;
  return recv(link.get(), &one, 1, 0) <= 0;
}

void send_call(const file_descriptor& link, const collective_call& call) {
  const auto frame =
      tcp::make_outgoing({.kind = tcp::frame_kind::call, .ready = true}, tcp::encode(call));
  REQUIRE(send(link.get(), frame.head.data(), frame.head.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(frame.head.size()));
}

template <class E>
std::string thrown_by(work& waited) {
  return testing::thrown_by<E>([&] { waited.wait(); });
}

TEST_CASE("a hello with a wrong field is refused with a reason and the group is not disturbed") {
  tcp_options options;
  options.secret[5] = 42;
  tcp_backend backend{options};
  const auto rank = backend.open(member(0));
  const auto refused = [&](auto change, answer_code code, const std::string& text) {
    auto hello = greeting();
    hello.secret = options.secret;
    change(hello);
    const auto link = connect_to(backend.address());
    const auto answer = say(link, tcp::encode(hello));
    CHECK(answer.code == code);
    CHECK(answer.text == text);
    CHECK(answer.secret == tcp::job_secret{});
    CHECK(closed_by_peer(link));
  };
  refused([](auto& h) { h.version = 9; }, answer_code::other_version, "it speaks version 4, not 9");
  refused([](auto& h) { h.secret[5] = 43; }, answer_code::wrong_secret, "the secret is another");
  refused([](auto& h) { h.job = job_id{8}; }, answer_code::not_open,
          "generation 3 of job 8 is not open there yet");
  refused([](auto& h) { h.generation = generation_id{4}; }, answer_code::not_open,
          "generation 4 of job 7 is not open there yet");
  refused([](auto& h) { h.generation = generation_id{2}; }, answer_code::left,
          "generation 2 of job 7 is over there");
  refused([](auto& h) { h.world = 3; }, answer_code::other_world,
          "rank 1 says its world is 3, others said 2");
  refused([](auto& h) { h.from = 0; }, answer_code::wrong_rank, "rank 0 does not dial rank 0");
  refused([](auto& h) { h.from = 2; }, answer_code::wrong_rank, "rank 2 does not dial rank 0");
  refused([](auto& h) { h.streams = 3; }, answer_code::other_streams,
          "rank 1 has 3 connections to each rank, rank 0 has 2");
  refused([](auto& h) { h.stream = 2; }, answer_code::wrong_stream,
          "there is no connection 2 of 2");
  refused(
      [](auto& h) {
        h.stream = 1;
        h.generation = generation_id{2};
      },
      answer_code::left, "generation 2 of job 7 is over there");

  const auto link = connect_to(backend.address());
  auto hello = greeting();
  hello.secret = options.secret;
  CHECK(say(link, tcp::encode(hello)) == tcp::answer{.secret = options.secret});
  // A second connection as rank 1. The first may need a moment to be registered.
  for (;;) {
    const auto answer = say(connect_to(backend.address()), tcp::encode(hello));
    if (answer.code == answer_code::welcome) continue;
    CHECK(answer.code == answer_code::duplicate);
    break;
  }
  CHECK_FALSE(rank->aborted());
}

// Connects as a client of HTTP. Returns when that has been closed, after all that connected before.
void call_as_stranger(const tcp_address& at) {
  const auto link = connect_to(at);
  const std::string request =
      "GET / HTTP/1.1\r\nHost: another server\r\n" + std::string(tcp::hello_bytes, 'x');
  send(link.get(), request.data(), request.size(), MSG_NOSIGNAL);
  CHECK(closed_by_peer(link));
}

TEST_CASE("connections that a rank waits for may be silent together, as its peers may be busy") {
  tcp_backend backend;
  auto who = member(0);
  who.world = 101;
  const auto rank = backend.open(who);
  std::vector<file_descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect_to(backend.address()));
  call_as_stranger(backend.address());
  for (const auto& link : silent) {
    std::byte one;
    CHECK(recv(link.get(), &one, 1, MSG_DONTWAIT) == -1);
  }
}

TEST_CASE("silent and foreign connections do not keep ranks from connecting") {
  tcp_backend backend;
  const auto address = backend.address();
  std::vector<file_descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect_to(address));
  call_as_stranger(address);
  // The connections that were silent for longest were closed to make room.
  CHECK(closed_by_peer(silent.front()));
  const auto first = backend.open(member(0));
  const auto second = backend.open(member(1));
  const auto met = first->barrier("met");
  second->barrier("met")->wait();
  met->wait();
}

TEST_CASE("ranks that differ in secret or world get an error that says so") {
  const auto book = std::make_shared<tcp_address_book>();
  tcp_options other{.rendezvous = book};
  const bool secret = GENERATE(true, false);
  if (secret) other.secret[31] = 1;
  tcp_backend one{tcp_options{.rendezvous = book}};
  tcp_backend two{other};
  const auto first = one.open(member(0));
  const auto second = two.open(member(1, secret ? 2 : 3));
  const auto text = thrown_by<generation_closed>(*second->barrier("x"));
  CHECK_THAT(text, Catch::StartsWith("rank 0 at 127.0.0.1:") &&
                       Catch::EndsWith(secret ? " refuses rank 1: the secret is another"
                                              : " refuses rank 1: rank 1 says its world is 3, "
                                                "others said 2"));
}

// What `call` throws while no descriptor is left.
template <class F>
std::string text_without_descriptors(const F& call) {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit low{std::min<rlim_t>(before.rlim_cur, 512), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::vector<file_descriptor> taken;
  for (int fd = 0; fd >= 0;)
    if (fd = open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0) taken.emplace_back(fd);
  std::string text = "nothing was thrown";
  try {
    call();
  } catch (const user_error& error) {
    text = error.what();
  } catch (const std::exception& error) {
    text = std::string{"no user_error: "} + error.what();
  }
  taken.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  return text;
}

TEST_CASE("a rank without a descriptor for its listener or its group says so") {
  if (testing::needs_descriptors) {
    WARN("SKIPPED: UndefinedBehaviorSanitizer needs a free descriptor");
    return;
  }
  tcp_backend backend;
  CHECK_THAT(text_without_descriptors([&] { backend.address(); }),
             Catch::StartsWith("no descriptor is left for a listener: raise the limit"));
  backend.address();
  CHECK_THAT(text_without_descriptors([&] { backend.open(member(0)); }),
             Catch::StartsWith("no descriptor is left for ") && Catch::Contains("ulimit -n"));
  CHECK_NOTHROW(backend.open(member(0)));
}

TEST_CASE("a rank without a descriptor for a connection says so") {
  const tcp_address closed{"127.0.0.1", 1};  // where every call is refused
  tcp_backend backend{tcp_options{
      .rendezvous = std::make_shared<tcp_fixed_addresses>(std::vector{closed, closed})}};
  const auto rank = backend.open(member(1));
  const auto waiting = rank->barrier("x");
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit low{std::min<rlim_t>(before.rlim_cur, 512), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  // Until the end: a call that was refused gives its descriptor back.
  std::vector<file_descriptor> taken;
  while (waiting->poll().status == work_status::pending) {
    const auto fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) taken.emplace_back(fd);
  }
  const auto text = thrown_by<generation_closed>(*waiting);
  taken.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK_THAT(text, Catch::Contains("no descriptor is left for a connection to rank 0: raise"));
}

TEST_CASE("a rank that vanishes after its handshake is named") {
  tcp_backend backend;
  const auto rank = backend.open(member(0));
  const auto waiting = rank->barrier("x");
  auto link = connect_to(backend.address());
  REQUIRE(say(link, tcp::encode(greeting())).code == answer_code::welcome);
  const bool reset = GENERATE(true, false);
  if (reset) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(link.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  link.reset();
  CHECK_THAT(thrown_by<generation_closed>(*waiting), Catch::StartsWith("rank 1 is lost: "));
}

TEST_CASE("a peer that neither reads nor writes after its call is named by the deadline") {
  tcp_backend backend;
  const auto rank = backend.open(member(0, 2, milliseconds{100}));
  const auto link = connect_to(backend.address());
  REQUIRE(say(link, tcp::encode(greeting())).code == answer_code::welcome);
  std::vector<float> memory(16 << 20, 1.0f);
  send_call(link,
            {.what = collective_kind::all_reduce, .type = dtype::f32, .count = memory.size()});
  const auto work = rank->all_reduce({memory.data(), memory.size(), dtype::f32}, reduction::sum);
  CHECK(thrown_by<collective_timeout>(*work) ==
        "all_reduce(sum, float32, 16777216): waited 0.1 s for rank 1");
  CHECK(work->poll().missing == std::vector<std::int32_t>{1});
  CHECK(rank->quiescent());
}

TEST_CASE("keepalive probes a silent host and leaves a stopped peer connected") {
  tcp_backend backend{tcp_options{.streams = 1}};
  const auto first = backend.open(member(0));
  const auto second = backend.open(member(1));
  const auto met = first->barrier("met");
  second->barrier("met")->wait();
  met->wait();
  int connections = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sin_family != AF_INET) continue;
    ++connections;
    const auto value = [&](int level, int name) {
      int found = -1;
      socklen_t bytes = sizeof found;
      getsockopt(fd, level, name, &found, &bytes);
      return found;
    };
    CHECK(value(SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(value(IPPROTO_TCP, TCP_KEEPIDLE) == 15);
    CHECK(value(IPPROTO_TCP, TCP_KEEPINTVL) == 5);
    CHECK(value(IPPROTO_TCP, TCP_KEEPCNT) == 9);
    CHECK(value(IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
    CHECK(value(IPPROTO_TCP, TCP_NODELAY) == 1);
  }
  CHECK(connections == 2);  // both ends
}

TEST_CASE("a listen address in use gives an error with a remedy") {
  tcp_backend first;
  const auto taken = first.address();
  tcp_backend second{tcp_options{.listen = taken}};
  CHECK_THROWS_WITH(second.address(), Catch::Contains("tcp cannot listen at " + to_string(taken)) &&
                                          Catch::Contains("choose another address or port"));
  CHECK_THROWS_AS(second.open(member(0)), user_error);
  CHECK_FALSE(second.unusable().empty());
  CHECK(first.unusable().empty());
}

TEST_CASE("a rank connects to one that aborted and left: it gets the reason of the abort") {
  const auto newer = GENERATE(false, true);  // the peer has opened the next generation
  const auto book = std::make_shared<tcp_address_book>();
  tcp_backend first{{.rendezvous = book}};
  tcp_backend second{{.rendezvous = book}};
  first.open(member(0))->abort("enough");
  auto next = member(0);
  next.generation = next.generation.next();
  const auto successor = newer ? first.open(next) : nullptr;
  const auto late = second.open(member(1));
  CHECK(thrown_by<generation_closed>(*late->barrier("x")) == "enough");
}

TEST_CASE("a rank without an entry in the address table ends the group that needs it") {
  tcp_backend backend{
      tcp_options{.rendezvous = std::make_shared<tcp_fixed_addresses>(std::vector<tcp_address>{})}};
  const auto rank = backend.open(member(1));
  CHECK(thrown_by<generation_closed>(*rank->barrier("x")) ==
        "no address of rank 0: the table of addresses has 0 ranks, not rank 0");
}

TEST_CASE("a label may have 1024 bytes and not more") {
  tcp_backend backend;
  const auto rank = backend.open(member(0, 1));
  rank->barrier(std::string(1024, 'x'))->wait();
  CHECK_THROWS_AS(rank->barrier(std::string(1025, 'x')), std::invalid_argument);
}

TEST_CASE("an address book finds published ranks and forgets a job") {
  tcp_address_book book;
  book.set(job, 1, {"::1", 99});
  CHECK(to_string(book.find(member(0), 1).value()) == "[::1]:99");
  CHECK_FALSE(book.find(member(0), 0));
  book.forget(job);
  CHECK_FALSE(book.find(member(0), 1));
}

TEST_CASE("open groups keep working after their backend is destroyed") {
  auto backend = std::make_unique<tcp_backend>();
  const auto first = backend->open(member(0));
  const auto second = backend->open(member(1));
  backend.reset();
  const auto met = first->barrier("met");
  second->barrier("met")->wait();
  met->wait();
}

}  // namespace
}  // namespace troupe
