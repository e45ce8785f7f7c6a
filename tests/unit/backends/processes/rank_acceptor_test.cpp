// Goal: ranks in other processes connect to their job and receive their assignment. A connection
// without the secret, or of a rank outside the world, is refused.
#include "backends/processes/rank_acceptor.hpp"

#include <boost/asio/write.hpp>

#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
namespace asio = boost::asio;

namespace {

tcp::job_secret some_secret(std::uint8_t first = 7) {
  tcp::job_secret secret{};
  for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::uint8_t>(first + i);
  return secret;
}

// The acceptor, and a client that sends one block and waits for the result.
struct visit {
  explicit visit(std::int32_t world = 2) : door(loop, {.world = world, .one_host = true}) {
    door.accept([this](std::int32_t rank, asio::ip::tcp::socket from) {
      come.push_back(rank);
      inside.push_back(std::move(from));
    });
  }
  // Sends `said`. Returns true if the acceptor closed the connection.
  bool turned_away(const arrival_block& said) {
    asio::ip::tcp::socket out{loop};
    const auto before = come.size();
    out.connect({asio::ip::make_address(door.where().hosts.at(0)), door.where().port});
    asio::write(out, asio::buffer(said));
    bool shut = false;
    char more = 0;
    out.async_receive(asio::buffer(&more, 1),
                      [&](const boost::system::error_code& error, std::size_t) {
                        shut = static_cast<bool>(error);
                      });
    while (!shut && come.size() == before)
      if (loop.run_one_for(std::chrono::seconds{30}) == 0) FAIL("neither accepted nor closed");
    const bool away = shut;
    out.close();
    loop.poll();
    return away;
  }

  asio::io_context loop{1};
  rank_acceptor door;
  std::vector<std::int32_t> come;
  std::vector<asio::ip::tcp::socket> inside;
};

}  // namespace

TEST_CASE("join info survives writing and reading as text and damaged text is refused") {
  const join_info what{{"10.0.0.1", "192.168.7.9"}, 4711, some_secret()};
  CHECK(read_join_info(to_text(what)) == what);
  const auto text = to_text(what);
  for (const std::string& wrong :
       {std::string{}, text.substr(0, 40), std::string{"0"} + text.substr(4), "x" + text,
        text.substr(0, text.find(" 10.")), text + " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"}) {
    INFO(wrong);
    CHECK_THROWS_AS(read_join_info(wrong), internal_error);
  }
  auto capital = text;
  capital[6] = 'G';
  CHECK_THROWS_AS(read_join_info(capital), internal_error);
}

TEST_CASE("an assignment is decoded unchanged and only with the right secret") {
  const assignment sent{.shutdown = false,
                        .who = {job_id{9}, 3, 7, incarnation_id{0xffff'ffff'ffff'fff1}}};
  auto block = encode_assignment(some_secret(), sent);
  const auto read = decode_assignment(block, some_secret());
  REQUIRE(read);
  CHECK_FALSE(read->shutdown);
  CHECK(read->who.job == sent.who.job);
  CHECK(read->who.number == 3);
  CHECK(read->who.world == 7);
  CHECK(read->who.incarnation == sent.who.incarnation);
  CHECK(decode_assignment(encode_assignment(some_secret(), {.shutdown = true, .who = {}}),
                          some_secret())
            ->shutdown);
  CHECK_FALSE(decode_assignment(block, some_secret(8)));
  block[0] = std::byte{'T'};
  CHECK_FALSE(decode_assignment(block, some_secret()));
}

TEST_CASE("a rank that knows the secret is accepted every time it connects") {
  visit to{2};
  for (const std::int32_t rank : {1, 0, 1})
    CHECK_FALSE(to.turned_away(encode_arrival(to.door.where().secret, rank)));
  CHECK(to.come == std::vector<std::int32_t>{1, 0, 1});
}

TEST_CASE("a rank is accepted although silent connections occupy every slot") {
  visit to{2};
  const asio::ip::tcp::endpoint at{asio::ip::make_address(to.door.where().hosts.at(0)),
                                   to.door.where().port};
  constexpr int more_than_places = 80;
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < more_than_places; ++i) silent.emplace_back(to.loop).connect(at);
  for (const std::int32_t rank : {1, 0})
    CHECK_FALSE(to.turned_away(encode_arrival(to.door.where().secret, rank)));
  CHECK(to.come == std::vector<std::int32_t>{1, 0});
}

TEST_CASE("connections with a wrong secret or rank or protocol are refused") {
  visit to{2};
  auto secret = to.door.where().secret;
  CHECK(to.turned_away(encode_arrival(secret, 2)));
  CHECK(to.turned_away(encode_arrival(secret, -1)));
  auto other = encode_arrival(secret, 1);
  other[7] = std::byte{'9'};
  CHECK(to.turned_away(other));
  secret[31] ^= 1;
  CHECK(to.turned_away(encode_arrival(secret, 1)));
  CHECK(to.come.empty());
}
