// Goal: every encoded message is decoded unchanged, and no bytes cause harm.
#include "backends/tcp/frame.hpp"
#include "tests/support/sanitized.hpp"

#include <rapidcheck.h>

#include <algorithm>
#include <random>

#include "tests/support/catch.hpp"

namespace troupe::tcp {
namespace {

template <class T>
T any() {
  return *rc::gen::arbitrary<T>();
}

job_secret any_secret() {
  job_secret secret;
  for (auto& b : secret) b = any<std::uint8_t>();
  return secret;
}

std::string any_text(std::size_t most) {
  auto text = any<std::string>();
  text.resize(std::min(text.size(), most));
  return text;
}

// Ascending and without repetition, in a world of 50 ranks.
std::vector<std::int32_t> any_ranks(std::size_t least) {
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < 50; ++rank)
    if (ranks.size() < least || any<bool>()) ranks.push_back(rank);
  return ranks;
}

collective_call any_call() {
  collective_call call;
  call.what = static_cast<collective_kind>(*rc::gen::inRange(0, 6));
  call.type = static_cast<dtype>(*rc::gen::inRange(0, 12));
  call.operation = static_cast<reduction>(*rc::gen::inRange(0, 5));
  call.count = any<std::uint64_t>();
  call.root = any<std::int32_t>();
  call.all = any<bool>();
  call.label = any_text(label_max);
  return call;
}

TEST_CASE("a handshake is decoded unchanged") {
  CHECK(rc::check("hello", [] {
    const hello sent{.secret = any_secret(),
                     .job = job_id{any<std::uint64_t>()},
                     .generation = generation_id{any<std::uint64_t>()},
                     .world = any<std::int32_t>(),
                     .from = any<std::int32_t>(),
                     .to = any<std::int32_t>(),
                     .stream = any<std::uint16_t>(),
                     .streams = any<std::uint16_t>()};
    RC_ASSERT(decode_hello(encode(sent)) == sent);
  }));
  CHECK(rc::check("answer", [] {
    const answer sent{.version = any<std::uint32_t>(),
                      .code = static_cast<answer_code>(*rc::gen::inRange(0, 10)),
                      .secret = any_secret(),
                      .text = any_text(answer_text_max)};
    RC_ASSERT(decode_answer(encode(sent)) == sent);
  }));
}

TEST_CASE("a hello of another version: only its version is decoded") {
  hello sent{.job = job_id{7}, .world = 3};
  sent.version = wire_version + 1;
  CHECK(decode_hello(encode(sent)) == hello{.version = wire_version + 1});
}

TEST_CASE("calls and rank lists and endings are decoded unchanged") {
  CHECK(rc::check("call", [] {
    const auto sent = any_call();
    RC_ASSERT(decode_call(encode(sent)) == sent);
  }));
  CHECK(rc::check("ranks", [] {
    const auto sent = any_ranks(0);
    RC_ASSERT(decode_ranks(encode_ranks(sent), 50) == sent);
  }));
  CHECK(rc::check("members", [] {
    const auto sent = any_ranks(2);
    RC_ASSERT(decode_members(encode_ranks(sent), 50) == sent);
  }));
  CHECK(rc::check("end reason", [] {
    const collectives::end_reason sent{.status = static_cast<work_status>(*rc::gen::inRange(2, 5)),
                                       .text = any_text(reason_max),
                                       .missing = any_ranks(0)};
    RC_ASSERT(decode_end_reason(encode(sent), 50) == sent);
  }));
}

TEST_CASE("the longest control messages of the largest world fit into a frame") {
  std::vector<std::int32_t> all;
  for (std::int32_t rank = 0; rank < world_max; ++rank) all.push_back(rank);
  CHECK(encode_ranks(all).size() <= extension_max);
  CHECK(encode(collectives::end_reason{.text = std::string(2 * reason_max, 'x'), .missing = all})
            .size() <= extension_max);
}

TEST_CASE("decoding random bytes gives a value that encodes to them or a wire_error") {
  const auto harmless = [](const auto& decode) {
    try {
      decode();
    } catch (const wire_error&) {
    }
  };
  std::mt19937_64 random{20240611};
  for (int round = 0; round < (testing::sanitized ? 5000 : 50000); ++round) {
    hello_block greeting = encode(hello{.world = 2, .from = 1});
    answer_block reply = encode(answer{.text = "no"});
    header_block header = encode(frame_header{.kind = frame_kind::call, .number = 3});
    extension bytes(random() % 60);
    for (auto& b : bytes) b = static_cast<std::byte>(random() % 8 == 0 ? random() : random() % 6);
    const auto damage = [&](auto& block) {
      for (auto hits = random() % 4; hits > 0; --hits)
        block[random() % block.size()] = static_cast<std::byte>(random());
    };
    damage(greeting);
    damage(reply);
    damage(header);
    harmless([&] { decode_hello(greeting); });
    harmless([&] { decode_answer(reply); });
    harmless([&] {
      const auto read = decode_header(header);
      REQUIRE(encode(read) == header);  // no bit is ignored
      REQUIRE(read.extension_bytes <= extension_max);
      REQUIRE(read.body_bytes <= body_max);
    });
    harmless([&] {
      const auto read = decode_call(bytes);
      REQUIRE(encode(read) == bytes);
    });
    harmless([&] {
      const auto read = decode_members(bytes, 7);
      REQUIRE(encode_ranks(read) == bytes);
    });
    harmless([&] {
      const auto read = decode_end_reason(bytes, 7);
      REQUIRE(encode(read) == bytes);
    });
  }
}

TEST_CASE("a trailer byte is whole or torn and any other value is an error") {
  for (const auto is : {trailer::whole, trailer::torn})
    CHECK(decode_trailer(static_cast<std::byte>(is)) == is);
  for (int other = 2; other < 256; ++other)
    CHECK_THROWS_AS(decode_trailer(static_cast<std::byte>(other)), wire_error);
}

TEST_CASE("secrets are compared to the last byte") {
  job_secret a{};
  auto b = a;
  CHECK(same_secret(a, b));
  b.back() = 1;
  CHECK_FALSE(same_secret(a, b));
}

}  // namespace
}  // namespace troupe::tcp
