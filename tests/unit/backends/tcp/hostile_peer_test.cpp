// Goal: a peer that sends damaged frames ends its group and costs no memory. The frames of a
// correct peer are damaged at random.
#include "backends/tcp/mesh.hpp"
#include "tests/support/minutes.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <random>

#include "tests/support/catch.hpp"

namespace troupe::tcp {
namespace {

using bytes = std::vector<std::byte>;

void append(bytes& to, const outgoing& frame) {
  to.insert(to.end(), frame.head.begin(), frame.head.end());
  to.insert(to.end(), frame.body, frame.body + frame.body_bytes);
  to.insert(to.end(), frame.trailer_bytes(), static_cast<std::byte>(trailer::whole));
}

// The bytes for each connection.
using talks = std::array<bytes, 2>;

// Frames that rank 1 may send: calls of small and large operations, and the data that follows them.
talks sound_talk(std::mt19937_64& random) {
  static const bytes body(body_max, std::byte{0x3f});
  talks all;
  auto& [talk, further] = all;
  for (std::uint64_t number = 0, frames = 1 + random() % 6; number < frames; ++number) {
    const auto what = static_cast<collective_kind>(random() % 6);
    collective_call call{
        .what = what, .type = dtype::f32, .count = random() % 3 == 0 ? 10u : 400000u};
    if (what == collective_kind::broadcast) call.root = static_cast<std::int32_t>(random() % 2);
    const bool small = call.count == 10;
    const bool payload = small && what <= collective_kind::reduce_scatter && call.root != 0;
    auto frame = make_outgoing({.kind = frame_kind::call,
                                .ready = true,
                                .number = number,
                                .body_bytes = payload ? 40u : 0u},
                               encode(call));
    frame.body = body.data();
    frame.body_bytes = payload ? 40 : 0;
    append(talk, frame);
    if (random() % 4 == 0) append(talk, make_outgoing({.kind = frame_kind::ask, .number = number}));
    if (random() % 4 == 0)
      append(talk, make_outgoing({.kind = frame_kind::waits, .number = number},
                                 encode_ranks(std::vector<std::int32_t>{0, 1})));
    if (small) continue;
    for (const auto part : {part::contribution, part::result}) {
      auto data = make_outgoing(
          {.kind = frame_kind::data, .what = part, .number = number, .body_bytes = body_max});
      data.body = body.data();
      data.body_bytes = body_max;
      if (random() % 2 == 0) append(all[random() % 2], data);
    }
  }
  if (random() % 3 == 0)
    append(talk, make_outgoing({.kind = frame_kind::abort, .channel = 0},
                               encode(collectives::end_reason{.text = "enough"})));
  else if (random() % 2 == 0)
    append(talk, make_outgoing({.kind = frame_kind::bye}));
  if (random() % 2 == 0) append(further, make_outgoing({.kind = frame_kind::bye}));
  return all;
}

void damage(bytes& talk, std::mt19937_64& random) {
  if (talk.empty()) return;
  for (auto hits = random() % 3; hits > 0; --hits) {
    const auto at = random() % talk.size();
    switch (random() % 4) {
      case 0: talk[at] = static_cast<std::byte>(random()); break;
      case 1: talk[random() % std::min<std::size_t>(talk.size(), 64)] ^= std::byte{1}; break;
      case 2: talk.resize(std::max<std::size_t>(at, 1)); break;
      case 3: {  // repeats a piece
        const bytes piece(talk.begin() + static_cast<std::ptrdiff_t>(at), talk.end());
        talk.insert(talk.end(), piece.begin(), piece.end());
        break;
      }
    }
  }
}

// Rank 0 of two, with operations of its own in flight, receives `all`.
void receive_all(const talks& all, std::mt19937_64& random) {
  constexpr std::size_t count = 400000;
  std::vector<float> memory(count + 64, 1.0f);
  const auto rank = std::make_shared<mesh>(group_description{.world = 2}, 2);
  std::array<file_descriptor, 2> far;
  for (const std::uint16_t stream : {0, 1}) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    far[stream] = file_descriptor{ends[1]};
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    rank->adopt(1, stream, file_descriptor{ends[0]});
  }
  auto& world = rank->among({0, 1});
  std::vector<std::shared_ptr<operation>> works;
  for (auto calls = random() % 4; calls > 0; --calls)
    works.push_back(rank->submit(world, {.call = {.what = collective_kind::all_reduce,
                                                  .type = dtype::f32,
                                                  .count = random() % 2 == 0 ? 10u : 400000u},
                                         .in = memory.data(),
                                         .out = memory.data()}));
  bytes received(1 << 16);
  std::array<std::size_t, 2> sent{};
  // A frame that never becomes due is not read, so sending may block.
  for (int idle = 0; sent[0] + sent[1] < all[0].size() + all[1].size() && idle < 20; ++idle) {
    if (rank->over()) break;
    const auto stream = random() % 2;
    const auto took = send(far[stream].get(), all[stream].data() + sent[stream],
                           all[stream].size() - sent[stream], MSG_NOSIGNAL);
    if (took > 0) sent[stream] += static_cast<std::size_t>(took);
    if (took > 0) idle = 0;
    rank->attend();
    for (const auto& end : far)
      while (recv(end.get(), received.data(), received.size(), 0) > 0) {
      }
  }
  for (auto& end : far) end.reset();
  for (int turn = 0; turn < 4; ++turn) rank->attend();
  for (std::size_t i = count; i < memory.size(); ++i) REQUIRE(memory[i] == 1.0f);
  if (rank->aborted()) {
    REQUIRE_FALSE(rank->why().empty());
    REQUIRE(rank->quiescent());
  }
  rank->depart();
  for (const auto& work : works) rank->poll(*work, {}, {});
}

// In KiB.
long most_memory() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

void receive_damaged(std::mt19937_64& random) {
  auto all = sound_talk(random);
  for (auto& talk : all) damage(talk, random);
  receive_all(all, random);
}

TEST_CASE("a peer that sends damaged frames ends its group and costs no memory") {
  std::mt19937_64 random{20240612};
  long before = 0;
  for (int round = 0; round < 600; ++round) {
    if (round == 200) before = most_memory();
    CAPTURE(round);
    receive_damaged(random);
  }
  CHECK(most_memory() < before + (64 << 10));  // the frames of one round are a few hundred KiB
}

TEST_CASE("damaged frames for a minute end the group and cost no memory", "[.minutes][frames]") {
  long before = 0;
  int round = 0;
  testing::for_a_while([&](std::mt19937_64& random) {
    if (++round == 200) before = most_memory();
    receive_damaged(random);
  });
  if (before != 0) CHECK(most_memory() < before + (64 << 10));
}

TEST_CASE("a peer that disconnects or breaks the protocol is named") {
  const auto says = [](const auto& speak) {
    constexpr std::size_t piece = 10000;
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    file_descriptor far{ends[1]};
    const auto rank = std::make_shared<mesh>(group_description{.world = 2}, 1);
    rank->adopt(1, 0, file_descriptor{ends[0]});
    bytes talk;
    speak(talk);
    for (std::size_t sent = 0; sent < talk.size(); rank->attend()) {
      const auto took = send(far.get(), talk.data() + sent, std::min(talk.size() - sent, piece), 0);
      REQUIRE(took > 0);
      sent += static_cast<std::size_t>(took);
    }
    if (talk.empty()) far.reset();
    rank->attend();
    return rank->why();
  };
  CHECK(says([](bytes&) {}) == "rank 1 is lost: it closed the connection");
  CHECK(says([](bytes& talk) { talk.resize(header_bytes); }) ==
        "rank 1 sent bytes that are no frame");
  CHECK(says([](bytes& talk) {
          append(talk, make_outgoing({.kind = frame_kind::ready, .number = 0}));
        }) == "rank 1 speaks of a collective that it has not called");
  CHECK(says([](bytes& talk) {
          append(talk, make_outgoing({.kind = frame_kind::ready, .channel = 1}));
        }) == "rank 1 speaks of a subgroup 1 that it has not named");
  CHECK(says([](bytes& talk) {
          append(talk,
                 make_outgoing({.kind = frame_kind::call, .number = 1}, encode(collective_call{})));
        }) == "rank 1 called collective 1 instead of 0");
  CHECK(says([](bytes& talk) {
          for (std::uint64_t number = 0; number <= 8192; ++number)
            append(talk, make_outgoing({.kind = frame_kind::call, .number = number},
                                       encode(collective_call{})));
        }) == "rank 1 is at collective 8192, this rank at 0");
  CHECK(says([](bytes& talk) {
          append(talk, make_outgoing({.kind = frame_kind::bye}));
          append(talk, make_outgoing({.kind = frame_kind::bye}));
        }) == "rank 1 sent a frame after its last");
}

}  // namespace
}  // namespace troupe::tcp
