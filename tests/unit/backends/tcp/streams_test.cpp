// Goal: two ranks may have several connections, over real sockets.
#include "backends/processes/rendezvous_kinds.hpp"
#include "backends/tcp/tcp.hpp"

#include <fcntl.h>

#include <thread>

#include "tests/support/thrown.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

group_description one_of_two(std::int32_t rank, std::uint64_t generation = 1) {
  return {.job = job_id{7}, .generation = generation_id{generation}, .rank = rank, .world = 2};
}

std::string last_word(work& waited) {
  return testing::thrown_by<generation_closed>([&] { waited.wait(); });
}

TEST_CASE("two ranks with different numbers of connections refuse each other") {
  const auto book = std::make_shared<tcp_address_book>();
  tcp_backend one{tcp_options{.rendezvous = book, .streams = 4}};
  tcp_backend two{tcp_options{.rendezvous = book, .streams = 1}};
  const auto first = one.open(one_of_two(0));
  const auto second = two.open(one_of_two(1));
  CHECK_THAT(
      last_word(*second->barrier("x")),
      Catch::EndsWith(" refuses rank 1: rank 1 has 1 connections to each rank, rank 0 has 4"));
}

TEST_CASE("the number of connections must be from 1 to 16") {
  for (const std::uint16_t streams : {0, 17})
    CHECK_THROWS_WITH(
        tcp_backend(tcp_options{.streams = streams}),
        "tcp.streams = " + std::to_string(streams) + ": two ranks have 1 to 16 connections");
  CHECK_NOTHROW(tcp_backend(tcp_options{.streams = 16}));
}

TEST_CASE("a rendezvous gives all ranks the same number of connections") {
  for (const auto& kind : process_rendezvous_kinds()) {
    if (kind->name() != "tcp") continue;
    CHECK_THROWS_AS(kind->arrange({.tcp_streams = 0}), user_error);
    CHECK_THROWS_AS(kind->arrange({.tcp_streams = 65537}), user_error);
    const auto place = kind->arrange({.tcp_streams = 3});
    const auto join = [&](const std::string& address) {
      return kind->join(address, {fcntl(place->descriptors().front(), F_DUPFD_CLOEXEC, 0)});
    };
    const auto one = join(place->address());
    const auto two = join("2");
    const auto first = one->open(one_of_two(0));
    const auto second = two->open(one_of_two(1));
    CHECK_THAT(last_word(*second->barrier("x")), Catch::EndsWith("rank 0 has 3"));
  }
}

TEST_CASE("a rank can leave once its part is done with any number of connections") {
  const std::uint16_t streams = GENERATE(1, 2, 16);
  tcp_backend backend{tcp_options{.streams = streams}};
  for (std::uint64_t generation = 1; generation <= 20; ++generation) {
    auto root = backend.open(one_of_two(0, generation));
    const auto other = backend.open(one_of_two(1, generation));
    std::vector<float> sent(1500000, static_cast<float>(generation));
    std::vector<float> here(sent.size());
    const auto received = other->broadcast({here.data(), here.size(), dtype::f32}, 0);
    root->broadcast({sent.data(), sent.size(), dtype::f32}, 0)->wait();
    root.reset();
    received->wait();
    REQUIRE(here == sent);
  }
}

TEST_CASE("a rank that left before it was dialed is reported once") {
  const std::uint16_t streams = GENERATE(1, 16);
  tcp_backend backend{tcp_options{.streams = streams}};
  backend.open(one_of_two(0)).reset();
  while (backend.groups() != 0) std::this_thread::yield();
  const auto late = backend.open(one_of_two(1));
  while (backend.groups() != 1) std::this_thread::yield();  // until all connections were refused
  const auto met = late->barrier("x");
  CHECK_THAT(last_word(*met), Catch::Contains("closed its communicator"));
}

}  // namespace
}  // namespace troupe
