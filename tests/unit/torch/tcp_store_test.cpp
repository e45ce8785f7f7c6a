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

// A port of this host at which nothing listens once the object is gone.
struct taken_port {
  boost::asio::io_context loop;
  ip::tcp::acceptor door{loop, {ip::address_v4::loopback(), 0}};
  std::uint16_t number() const { return door.local_endpoint().port(); }
};

store_place place_at(std::uint16_t port, bool serves) {
  return {.host = "127.0.0.1",
          .port = port,
          .serves = serves,
          .prefix = "job ",
          .launcher = "srun",
          .patience = soon};
}

}  // namespace

TEST_CASE("two processes read each other's texts in a store") {
  const auto port = taken_port{}.number();
  const auto served = tcp_store(place_at(port, true));
  CHECK_FALSE(served->find("key"));
  const auto other = tcp_store(place_at(port, false));
  other->set("key", "one");
  CHECK(served->find("key") == "one");
  other->set("key", "");
  CHECK(served->wait("key", milliseconds{0}) == "");
  CHECK(served->host() == "127.0.0.1");
  CHECK_THROWS_WITH(other->wait("none", soon), Contains("the store of srun at 127.0.0.1:"));
  auto elsewhere = place_at(port, false);
  elsewhere.prefix = "another job ";
  CHECK_FALSE(tcp_store(elsewhere)->find("key"));
}

TEST_CASE("a store that is not there is an error after the patience") {
  const auto port = taken_port{}.number();
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
