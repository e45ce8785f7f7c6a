// Goal: the table of arrived operations and the control messages about them are right, without MPI.
#include "backends/mpi/arrival_table.hpp"
#include "backends/mpi/control_message.hpp"
#include "tests/support/minutes.hpp"

#include <cstring>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::mpi;

namespace {

collective_call barrier(std::string label) { return {.label = std::move(label)}; }
collective_call decide_call(bool all) { return {.what = collective_kind::decide, .all = all}; }

// Decodes a control message with random damage: either it is refused, or the result encodes to
// itself.
void receive_damaged_control_message(std::mt19937_64& draw) {
  constexpr std::size_t fields = offsetof(control_message, text);
  const collective_call sound{.what = collective_kind::all_reduce,
                              .type = dtype::bf16,
                              .operation = reduction::max,
                              .count = 9,
                              .label = std::string(draw() % 472, 'x')};
  auto sent = control_message_of(sound, true);
  std::array<unsigned char, sizeof(control_message)> bytes;
  std::memcpy(bytes.data(), &sent, bytes.size());
  for (auto hits = draw() % 4; hits > 0; --hits) {
    const auto at = draw() % (draw() % 4 == 0 ? bytes.size() : fields);
    bytes[at] = static_cast<unsigned char>(draw() % 2 == 0 ? draw() % 16 : draw());
  }
  std::memcpy(&sent, bytes.data(), bytes.size());
  REQUIRE(text_of(sent).size() <= sent.text.size());
  try {
    const auto received = call_of(sent);
    REQUIRE(call_of(control_message_of(received, false)) == received);
    REQUIRE((received.what <= collective_kind::decide && received.type <= dtype::c128));
    REQUIRE(received.operation <= reduction::product);
    arrival_table r{{0, 1}};
    r.arrive(0, sound, true);
    const auto differs = r.arrive(1, received, sent.yes != 0);
    REQUIRE(differs.has_value() == !r.complete(0));
    if (differs) REQUIRE(differs->size() < 2000);
  } catch (const std::invalid_argument& error) {
    REQUIRE(error.what() == std::string{"a control message that no rank of this program sends"});
  }
}

}  // namespace

TEST_CASE("an operation is complete once all members arrived with the same call") {
  arrival_table r{{0, 2, 5}};
  CHECK(r.missing(0) == std::vector<std::int32_t>{0, 2, 5});
  CHECK(r.member(5) == 2);
  CHECK_THROWS_AS(r.member(1), std::invalid_argument);
  CHECK_FALSE(r.arrive(2, barrier("a"), false));
  CHECK_FALSE(r.arrive(2, barrier("b"), false));
  CHECK_FALSE(r.arrive(0, barrier("a"), false));
  CHECK(r.missing(0) == std::vector<std::int32_t>{2});
  CHECK(r.missing(1) == std::vector<std::int32_t>{0, 2});
  CHECK(r.missing(7) == std::vector<std::int32_t>{0, 2, 5});
  CHECK_FALSE(r.complete(0));
  CHECK_FALSE(r.arrive(1, barrier("a"), false));
  CHECK(r.complete(0));
  CHECK_FALSE(r.complete(1));
  const auto copy = r;
  r.drop_before(2);
  CHECK(r.first() == 1);
  CHECK(r != copy);
  CHECK(r.missing(0).empty());
  CHECK(r.arrivals(2) == 2);
}

TEST_CASE("a member that arrives with a different call is named with both calls") {
  arrival_table r{{0, 1}};
  CHECK_FALSE(r.arrive(0, barrier("epoch"), false));
  const auto text = r.arrive(1, barrier("teardown"), false);
  REQUIRE(text);
  CHECK(*text ==
        "ranks disagree on collective 0: rank 0: barrier \"epoch\", rank 1: barrier \"teardown\"");
  CHECK_FALSE(r.complete(0));
  r.drop_before(1);
  CHECK(r.first() == 0);
}

TEST_CASE("a decision combines the votes of all members") {
  for (const bool all : {true, false})
    for (int mask = 0; mask < 4; ++mask) {
      arrival_table r{{0, 1}};
      r.arrive(0, decide_call(all), (mask & 1) != 0);
      r.arrive(1, decide_call(all), (mask & 2) != 0);
      CHECK(r.verdict(0) == (all ? mask == 3 : mask != 0));
    }
  CHECK_THROWS_AS((arrival_table{{0, 1}}.verdict(0)), internal_error);
}

// A rank that has 4,096 operations in flight may see another rank 4,096 ahead of those.
TEST_CASE("the arrival table is bounded") {
  arrival_table r{{0, 1}};
  STATIC_REQUIRE(arrival_table::limit == 8192);
  for (std::size_t i = 0; i < arrival_table::limit; ++i) r.arrive(0, barrier(""), false);
  CHECK_THROWS_AS(r.arrive(0, barrier(""), false), internal_error);
  for (std::size_t i = 0; i < 3; ++i) r.arrive(1, barrier(""), false);
  r.drop_before(3);
  CHECK_FALSE(r.arrive(0, barrier(""), false));
}

TEST_CASE("a control message encodes and decodes a call unchanged") {
  const collective_call calls[] = {{.what = collective_kind::all_reduce,
                                    .type = dtype::bf16,
                                    .operation = reduction::max,
                                    .count = 9},
                                   {.what = collective_kind::broadcast,
                                    .type = dtype::c128,
                                    .root = 3,
                                    .count = std::uint64_t{1} << 40},
                                   {.what = collective_kind::decide, .all = false},
                                   barrier("epoch"),
                                   barrier(std::string(472, 'x'))};
  for (const auto& call : calls) {
    const auto sent = control_message_of(call, true);
    CHECK(call_of(sent) == call);
    CHECK(sent.yes == 1);
  }
}

TEST_CASE("a text that does not fit is cut and stays distinguishable") {
  const std::string long_text(5000, 'a');
  const auto cut = fitting(long_text);
  CHECK(cut.size() == control_message{}.text.size());
  CHECK(cut != fitting(long_text + "b"));
  CHECK(cut == fitting(long_text));
  CHECK(fitting("short") == "short");
  control_message n;
  put_text(n, long_text);
  CHECK(text_of(n) == cut);
}

TEST_CASE("a control message with impossible values is refused") {
  auto n = control_message_of(barrier("x"), false);
  const auto refused = [](control_message what) {
    CHECK_THROWS_AS(call_of(what), std::invalid_argument);
  };
  n.what = static_cast<collective_kind>(77);
  refused(n);
  n = control_message_of(barrier("x"), false);
  n.type = static_cast<dtype>(12);
  refused(n);
  n = control_message_of(barrier("x"), false);
  n.operation = static_cast<reduction>(5);
  refused(n);
  n = control_message_of(barrier("x"), false);
  n.text_size = 473;
  refused(n);
  n.kind = control_message_kind::bye;
  n.text_size = 0;
  refused(n);
}

TEST_CASE("channel names follow from the members and are never 0") {
  const std::vector<std::int32_t> a{0, 1}, b{0, 2}, c{1, 2};
  CHECK(channel_name(a) == channel_name(a));
  CHECK(channel_name(a) != channel_name(b));
  CHECK(channel_name(b) != channel_name(c));
  CHECK(channel_name(std::vector<std::int32_t>{}) != 0);
}

TEST_CASE("a damaged control message is refused or decodes to a valid call") {
  std::mt19937_64 draw{20261122};
  for (int round = 0; round < 2000; ++round) {
    CAPTURE(round);
    receive_damaged_control_message(draw);
  }
}

TEST_CASE("damaged control messages for a minute are refused or decode to a valid call",
          "[.minutes]") {
  troupe::testing::for_a_while(receive_damaged_control_message);
}
