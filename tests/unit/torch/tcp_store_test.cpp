// Goal: processes of a launcher read each other's texts in one store. A store that is not there, or
// whose port has another program, is an error that names the place and the fix.
#include "backends/torch/tcp_store.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "tests/support/catch.hpp"

using namespace troupe;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;
namespace ip = boost::asio::ip;

namespace {

constexpr milliseconds soon{300};

// A port of this host that only a store can take while the object lives: it is bound, and nothing
// listens there.
struct free_port {
  free_port() {
    held.set_option(ip::tcp::socket::reuse_address{true});
    held.bind({ip::address_v4::loopback(), 0});
  }
  boost::asio::io_context loop;
  ip::tcp::socket held{loop, ip::tcp::v4()};
  std::uint16_t number() const { return held.local_endpoint().port(); }
};

// A port at which another program listens and never answers.
struct taken_port {
  boost::asio::io_context loop;
  ip::tcp::acceptor door{loop, {ip::address_v4::loopback(), 0}};
  std::uint16_t number() const { return door.local_endpoint().port(); }
};

store_place place_at(std::uint16_t port, bool serves, milliseconds patience = soon) {
  return {.host = "127.0.0.1",
          .port = port,
          .serves = serves,
          .prefix = "job ",
          .launcher = "srun",
          .patience = patience};
}

}  // namespace

TEST_CASE("two processes read each other's texts in a store") {
  const free_port held;
  const auto port = held.number();
  const std::chrono::minutes patience{1};
  const auto served = tcp_store(place_at(port, true, patience));
  CHECK_FALSE(served->find("key"));
  const auto other = tcp_store(place_at(port, false, patience));
  other->set("key", "one");
  CHECK(served->find("key") == "one");
  other->set("key", "");
  CHECK(served->wait("key", milliseconds{0}) == "");
  CHECK(served->host() == "127.0.0.1");
  CHECK_THROWS_WITH(other->wait("none", soon), Contains("the store of srun at 127.0.0.1:"));
  auto elsewhere = place_at(port, false, patience);
  elsewhere.prefix = "another job ";
  CHECK_FALSE(tcp_store(elsewhere)->find("key"));
}

TEST_CASE("a store that is not there is an error after the patience") {
  const free_port held;
  const auto port = held.number();
  const auto text = fmt::format("127.0.0.1:{}", port);
  CHECK_THROWS_WITH(tcp_store(place_at(port, false))->find("key"), Contains(text));
}

TEST_CASE("another program at the port of a store is named, also when it never answers") {
  const taken_port silent;
  const auto text = fmt::format("127.0.0.1:{}", silent.number());
  CHECK_THROWS_WITH(tcp_store(place_at(silent.number(), false))->find("key"),
                    Contains(text) && Contains("set MASTER_PORT"));
  CHECK_THROWS_WITH(tcp_store(place_at(silent.number(), true))->find("key"),
                    Contains(text) && Contains("set MASTER_PORT"));
}
