// Ranks' meshes joined by socket pairs and moved by hand: what happens between two turns, and in
// what order several connections bring what was said.
#include "backends/tcp/mesh.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include "tests/support/catch.hpp"

namespace troupe::tcp {
namespace {

using std::byte;

// With `buffer`: a chunk does not go at once.
std::pair<descriptor, descriptor> joined(int buffer = 0) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  for (const int end : ends)
    if (buffer != 0) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  return {descriptor{ends[0]}, descriptor{ends[1]}};
}

struct two_ranks {
  explicit two_ranks(std::uint16_t streams) {
    for (const std::int32_t rank : {0, 1})
      ranks[rank] = std::make_shared<mesh>(group_description{.rank = rank, .world = 2}, streams);
  }
  ~two_ranks() {
    for (const auto& rank : ranks) rank->depart();
  }
  two_ranks(const two_ranks&) = delete;
  two_ranks& operator=(const two_ranks&) = delete;

  void connect(std::uint16_t stream, int buffer = 0) {
    auto [a, b] = joined(buffer);
    ranks[0]->adopt(1, stream, std::move(a));
    ranks[1]->adopt(0, stream, std::move(b));
  }
  std::shared_ptr<operation> broadcast(std::size_t rank, std::vector<byte>& memory) {
    const collective_call call{
        .what = collective::broadcast, .type = dtype::u8, .root = 0, .count = memory.size()};
    return ranks[rank]->submit(
        ranks[rank]->among({0, 1}),
        {.call = call, .in = memory.data(), .out = memory.data(), .yes = rank == 0});
  }
  work_status status(std::size_t rank, operation& of) {
    return ranks[rank]->poll(of, {}, {}).status;
  }
  void attend() {
    for (const auto& rank : ranks) rank->attend();
  }

  std::shared_ptr<mesh> ranks[2];
};

TEST_CASE("what a rank had begun to send when it aborted is no result elsewhere") {
  const std::uint16_t streams = GENERATE(1, 2);
  two_ranks both{streams};
  for (std::uint16_t stream = 0; stream < streams; ++stream) both.connect(stream, 4096);
  std::vector<byte> sent(streams * chunk_bytes, byte{7});
  std::vector<byte> here(sent.size(), byte{1});
  const auto root = both.broadcast(0, sent);
  const auto other = both.broadcast(1, here);
  while (here.front() != byte{7} || here[here.size() - chunk_bytes] != byte{7}) both.attend();
  REQUIRE(both.status(0, *root) == work_status::pending);
  both.ranks[0]->abort("enough");
  for (int turn = 0; turn < 10000 && both.status(1, *other) == work_status::pending; ++turn)
    both.attend();
  CHECK(both.status(1, *other) == work_status::aborted);
  CHECK(both.ranks[1]->why() == "enough");
}

TEST_CASE("what a rank sent before it left arrives, though its goodbye is heard first") {
  two_ranks both{2};
  both.connect(0);
  both.connect(1);
  // Each goes in one chunk; connections take turns.
  std::vector<byte> sent(payload_max + 1, byte{7});
  std::vector<byte> here(sent.size());
  for (int turn = 0; turn < 2; ++turn) {
    here.assign(here.size(), byte{1});
    const auto other = both.broadcast(1, here);
    const auto root = both.broadcast(0, sent);
    for (int i = 0; i < 4; ++i) both.ranks[0]->attend();
    both.ranks[1]->attend();  // says that it is ready
    while (both.status(0, *root) == work_status::pending) both.ranks[0]->attend();
    if (turn == 1) both.ranks[0]->depart();
    for (int i = 0; i < 100 && both.status(1, *other) == work_status::pending; ++i)
      both.ranks[1]->attend();
    REQUIRE(both.status(1, *other) == work_status::ok);
    REQUIRE(here == sent);
  }
}

// Rank 0 with two connections, and rank 1 played by hand.
struct hand_played {
  hand_played() {
    for (const std::uint16_t stream : {0, 1}) {
      auto [near, far] = joined();
      fcntl(far.get(), F_SETFL, O_NONBLOCK);
      rank->adopt(1, stream, std::move(near));
      ends.push_back(std::move(far));
    }
  }
  ~hand_played() { rank->depart(); }
  hand_played(const hand_played&) = delete;
  hand_played& operator=(const hand_played&) = delete;

  void say(std::size_t stream, const outgoing& frame) {
    std::vector<byte> talk(frame.head);
    talk.insert(talk.end(), frame.body, frame.body + frame.body_bytes);
    talk.insert(talk.end(), frame.seal_bytes(), static_cast<byte>(seal::whole));
    for (std::size_t sent = 0; sent < talk.size(); rank->attend()) {
      const auto took =
          send(ends[stream].get(), talk.data() + sent, talk.size() - sent, MSG_NOSIGNAL);
      if (took > 0) sent += static_cast<std::size_t>(took);
      if (rank->over()) return;
    }
  }
  std::shared_ptr<operation> reduce() {
    return rank->submit(rank->among({0, 1}),
                        {.call = call, .in = memory.data(), .out = memory.data()});
  }
  outgoing call_frame() const {
    return make_outgoing({.kind = frame_kind::call, .ready = true}, encode(call));
  }
  outgoing chunk(part what, std::uint64_t number = 0) const {
    auto frame = make_outgoing({.kind = frame_kind::data,
                                .what = what,
                                .number = number,
                                .body_bytes = static_cast<std::uint32_t>(body.size() * 4)});
    frame.body = reinterpret_cast<const byte*>(body.data());
    frame.body_bytes = body.size() * 4;
    return frame;
  }
  bool pending(operation& of) const {
    return rank->poll(of, {}, {}).status == work_status::pending;
  }

  std::vector<descriptor> ends;  // by stream
  std::shared_ptr<mesh> rank = std::make_shared<mesh>(group_description{.world = 2}, 2);
  std::vector<float> memory = std::vector<float>(40000, 1.0f);
  std::vector<float> body = std::vector<float>(20000, 2.0f);
  collective_call call{.what = collective::all_reduce, .type = dtype::f32, .count = 40000};
};

TEST_CASE("a chunk that overtakes its call waits where it is") {
  hand_played with;
  with.say(1, with.chunk(part::contribution));
  const auto work = with.reduce();
  with.rank->attend();
  CHECK(with.pending(*work));
  CHECK(with.memory.front() == 1.0f);
  with.say(0, with.call_frame());
  CHECK(with.memory.front() == 3.0f);  // reduced
  CHECK(with.pending(*work));
  CHECK(with.memory.back() == 1.0f);
  with.say(1, with.chunk(part::result));
  CHECK(with.memory.back() == 2.0f);
  CHECK_FALSE(with.pending(*work));
}

TEST_CASE("nothing more is read of a connection whose first frame is early") {
  hand_played with;
  const auto work = with.reduce();
  std::vector<byte> flood(1 << 20, byte{9});
  const auto early = with.chunk(part::contribution);
  REQUIRE(send(with.ends[1].get(), early.head.data(), early.head.size(), MSG_NOSIGNAL) > 0);
  std::size_t taken = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    const auto took = send(with.ends[1].get(), flood.data(), flood.size(), MSG_NOSIGNAL);
    if (took > 0) taken += static_cast<std::size_t>(took);
    with.rank->attend();
  }
  CHECK(taken < flood.size());  // what a connection holds and the kernel's buffers
  CHECK(with.pending(*work));
}

TEST_CASE("a further connection that breaks the rules or is lost costs the group") {
  const auto why = [](const auto& misbehave) {
    hand_played with;
    const auto work = with.reduce();
    with.say(0, with.call_frame());
    misbehave(with);
    for (int turn = 0; turn < 4; ++turn) with.rank->attend();
    CHECK_FALSE(with.pending(*work));
    CHECK(with.rank->quiescent());
    return with.rank->why();
  };
  CHECK(why([](hand_played& with) { with.ends[1].reset(); }) ==
        "rank 1 is lost: it closed the connection");
  const std::string no_chunk = "rank 1 sent something else than a chunk over a further connection";
  CHECK(why([](hand_played& with) { with.say(1, make_outgoing({.kind = frame_kind::ask})); }) ==
        no_chunk);
  CHECK(why([](hand_played& with) { with.say(1, with.chunk(part::payload)); }) == no_chunk);
  CHECK(why([](hand_played& with) {
          with.say(1, make_outgoing({.kind = frame_kind::bye}));
          with.say(1, with.chunk(part::contribution));
        }) == "rank 1 sent a frame after its last");
  CHECK(why([](hand_played& with) {
          with.say(0, make_outgoing({.kind = frame_kind::bye}));
          with.say(1, with.chunk(part::contribution, 1));
        }) == "rank 1 sent a chunk of nothing that it called");
  CHECK_THAT(why([](hand_played& with) {
               with.say(1, with.chunk(part::contribution));
               with.say(0, with.chunk(part::contribution));
             }),
             Catch::StartsWith("rank 1 sent 80000 bytes at 0 in all_reduce"));
}

TEST_CASE("a group goes on over the connections that there are") {
  two_ranks both{4};
  both.connect(0);
  std::vector<byte> sent(3 * chunk_bytes, byte{7});
  std::vector<byte> here(sent.size());
  for (const std::uint16_t fresh : {1, 2, 3}) {
    here.assign(here.size(), byte{1});
    const auto root = both.broadcast(0, sent);
    const auto other = both.broadcast(1, here);
    while (both.status(1, *other) == work_status::pending) both.attend();
    REQUIRE(here == sent);
    both.connect(fresh);
    for (int i = 0; i < 3; ++i) both.attend();
    REQUIRE(both.status(0, *root) == work_status::ok);
  }
}

}  // namespace
}  // namespace troupe::tcp
