// Goal: a byte stream becomes the messages that were sent, however it is split. Hostile bytes cost
// an error and no memory.
#include "backends/processes/message_assembler.hpp"

#include <rapidcheck.h>

#include <cstring>

#include "tests/support/minutes.hpp"
#include "tests/unit/backends/processes/any_message.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

void append(std::vector<std::byte>& to, const std::vector<std::byte>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::vector<std::byte> stream_of(const std::vector<packed_message>& messages) {
  auto bytes = link_greeting(us);
  for (const auto& m : messages) {
    append(bytes, heartbeat());
    append(bytes, message_prefix(m));
    append(bytes, m.head);
    for (const auto& a : m.attachments) append(bytes, *a);
  }
  return bytes;
}

// Feeds the bytes in pieces of up to `most` bytes.
std::vector<packed_message> fed(message_assembler& to, std::span<const std::byte> bytes,
                                std::size_t most) {
  std::vector<packed_message> out;
  while (!bytes.empty()) {
    const auto room = to.room();
    const auto size = std::min({room.size(), bytes.size(), most});
    std::memcpy(room.data(), bytes.data(), size);
    to.filled(size);
    bytes = bytes.subspan(size);
    while (auto m = to.next()) out.push_back(std::move(*m));
  }
  return out;
}

}  // namespace

TEST_CASE("messages between heartbeats are assembled whole however the stream is split") {
  CHECK(rc::check([](std::uint64_t seed) {
    std::mt19937_64 draw{seed};
    std::vector<packed_message> sent;
    for (int i = 0; i < 6; ++i) {
      auto what = any_message(draw(), draw());
      if (i == 2) what = write_checkpoint{{}, any_snapshot(draw, draw() % 400'000), false};
      sent.push_back(pack(what, nullptr));
    }
    message_assembler to{us};
    const auto got = fed(to, stream_of(sent), 1 + draw() % 200'000);
    RC_ASSERT(got.size() == sent.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      RC_ASSERT(got[i].head == sent[i].head);
      RC_ASSERT(got[i].attachments.size() == sent[i].attachments.size());
      for (std::size_t a = 0; a < got[i].attachments.size(); ++a)
        RC_ASSERT(*got[i].attachments[a] == *sent[i].attachments[a]);
    }
  }));
}

TEST_CASE("a greeting of another job or incarnation or protocol is refused at once") {
  const auto greet = [](const std::vector<std::byte>& bytes) {
    message_assembler to{us};
    fed(to, bytes, 1000);
  };
  CHECK_NOTHROW(greet(link_greeting(us)));
  CHECK_THROWS_AS(greet(link_greeting(us, std::chrono::nanoseconds{-1})), damaged_message);
  CHECK_THROWS_AS(greet(link_greeting({job_id{8}, us.incarnation})), damaged_message);
  CHECK_THROWS_AS(greet(link_greeting({us.job, incarnation_id{8}})), damaged_message);
  CHECK_THROWS_AS(greet(std::vector<std::byte>(32, std::byte{'G'})), damaged_message);
}

TEST_CASE("announced sizes allocate no memory and impossible ones are refused") {
  const auto huge = [](std::uint64_t head, std::uint32_t attachments, std::uint64_t attachment) {
    auto bytes = link_greeting(us);
    std::vector<std::byte> prefix(16);
    const std::uint32_t mark = 0x4d505254;
    std::memcpy(prefix.data(), &mark, 4);
    std::memcpy(prefix.data() + 4, &attachments, 4);
    std::memcpy(prefix.data() + 8, &head, 8);
    append(bytes, prefix);
    std::vector<std::byte> size(8);
    std::memcpy(size.data(), &attachment, 8);
    if (attachments > 0) append(bytes, size);
    message_assembler to{us};
    return fed(to, bytes, 1000).size();
  };
  CHECK(huge(0, 0, 0) == 0);  // a heartbeat
  CHECK_THROWS_AS(huge(0, 1, 1), damaged_message);
  CHECK_THROWS_AS(huge(std::uint64_t{1} << 40, 0, 0), damaged_message);
  CHECK_THROWS_AS(huge(10, 1 << 20, 0), damaged_message);
  CHECK_THROWS_AS(huge(10, 1, std::uint64_t{1} << 50), damaged_message);
  CHECK(huge(10, 1, std::uint64_t{1} << 40) == 0);  // waits, and holds one megabyte at most
}

namespace {

void receive_damaged(std::mt19937_64& draw) {
  auto bytes = stream_of(
      {pack(any_message(draw(), draw()), nullptr), pack(any_message(draw(), draw()), nullptr)});
  for (int i = 0; i < 3; ++i) bytes[draw() % bytes.size()] = static_cast<std::byte>(draw() & 0xff);
  message_assembler to{us};
  try {
    for (const auto& m : fed(to, bytes, 1 + draw() % 100)) unpack(m.head, m.attachments, nullptr);
  } catch (const damaged_message&) {
  }
}

}  // namespace

TEST_CASE("a damaged stream is refused or waits for more bytes") {
  CHECK(rc::check([](std::uint64_t seed) {
    std::mt19937_64 draw{seed};
    receive_damaged(draw);
  }));
}

TEST_CASE("damaged streams for a minute are refused or wait for more bytes", "[.minutes]") {
  for_a_while(receive_damaged);
}
