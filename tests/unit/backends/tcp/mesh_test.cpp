// Goal: meshes of ranks work when frames arrive over several connections in any order, and when
// several threads of a rank wait.
// Method: meshes joined by socket pairs, advanced by hand, one turn at a time.
#include "backends/tcp/mesh.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::tcp {
namespace {

using std::byte;

// With `buffer`: a chunk does not go at once.
std::pair<file_descriptor, file_descriptor> joined(int buffer = 0) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  for (const int end : ends)
    if (buffer != 0) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  return {file_descriptor{ends[0]}, file_descriptor{ends[1]}};
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
        .what = collective_kind::broadcast, .type = dtype::u8, .root = 0, .count = memory.size()};
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

// The smallest size that uses several connections.
constexpr std::size_t wide_bytes = window * chunk_bytes;

TEST_CASE("a broadcast aborted while its data is sent is aborted at the receiver too") {
  const std::uint16_t streams = GENERATE(1, 2);
  two_ranks both{streams};
  for (std::uint16_t stream = 0; stream < streams; ++stream) both.connect(stream, 4096);
  std::vector<byte> sent(wide_bytes, byte{7});
  std::vector<byte> here(sent.size(), byte{1});
  const auto root = both.broadcast(0, sent);
  const auto other = both.broadcast(1, here);
  const auto begun = [&](std::size_t chunk) { return here[chunk * chunk_bytes] == byte{7}; };
  while (!begun(window - 2) || !begun(window - 1)) both.attend();
  REQUIRE(both.status(0, *root) == work_status::pending);
  both.ranks[0]->abort("enough");
  for (int turn = 0; turn < 10000 && both.status(1, *other) == work_status::pending; ++turn)
    both.attend();
  CHECK(both.status(1, *other) == work_status::aborted);
  CHECK(both.ranks[1]->why() == "enough");
}

TEST_CASE("a group uses its existing connections while additional ones are made") {
  two_ranks both{4};
  both.connect(0);
  std::vector<byte> sent(wide_bytes + 1, byte{7});
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

// A thread of a rank that waits for an operation. Returns from its constructor when it sleeps.
class waiter {
public:
  waiter(mesh& in, std::shared_ptr<operation> what, std::chrono::nanoseconds deadline)
      : thread_([this, &in, what = std::move(what), deadline] {
          id_ = gettid();
          in.wait(*what, mesh::clock::now(), deadline);
        }) {
    while (id_ == 0 || state() != 'S') std::this_thread::yield();
  }
  ~waiter() { join(); }
  waiter(const waiter&) = delete;
  waiter& operator=(const waiter&) = delete;
  void join() {
    if (thread_.joinable()) thread_.join();
  }

private:
  // See proc(5): the first field after the name in parentheses.
  char state() const {
    std::ifstream file{fmt::format("/proc/self/task/{}/stat", id_.load())};
    std::string text;
    std::getline(file, text);
    const auto name_end = text.rfind(") ");
    return name_end == std::string::npos ? '?' : text[name_end + 2];
  }
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

// The threads sleep before there is a connection. Then one of them reads for all.
TEST_CASE("every waiting thread of a rank sees the end of its operation") {
  two_ranks both{1};
  auto& rank = *both.ranks[0];
  const auto barrier = [&](std::size_t of) {
    return both.ranks[of]->submit(both.ranks[of]->among({0, 1}), {});
  };
  std::vector<std::shared_ptr<operation>> works;
  std::deque<waiter> waiters;
  for (int i = 0; i < 8; ++i)
    waiters.emplace_back(rank, works.emplace_back(barrier(0)), std::chrono::seconds{20});
  const auto begin = mesh::clock::now();
  both.connect(0);
  const auto meet = [&](operation& work) {
    barrier(1);
    while (work.how.pending()) both.attend();
  };
  meet(*works.front());
  waiters.front().join();
  CHECK(rank.waiting());  // on the other threads
  for (std::size_t i = 1; i < works.size(); ++i) meet(*works[i]);
  for (std::size_t i = 1; i < works.size(); ++i) waiters[i].join();
  CHECK_FALSE(rank.waiting());
  // No thread slept until its deadline.
  CHECK(mesh::clock::now() - begin < std::chrono::seconds{10});
}

TEST_CASE("a thread that sleeps at the sockets sends what another thread submits") {
  std::vector<std::shared_ptr<mesh>> ranks;
  for (const std::int32_t rank : {0, 1, 2})
    ranks.push_back(std::make_shared<mesh>(group_description{.rank = rank, .world = 3}, 1));
  for (const auto& [low, high] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{1, 2}}) {
    auto [a, b] = joined(4096);
    ranks[low]->adopt(high, 0, std::move(a));
    ranks[high]->adopt(low, 0, std::move(b));
  }
  const auto attend_until = [&](const std::function<bool()>& over) {
    const auto until = mesh::clock::now() + std::chrono::seconds{10};
    while (!over() && mesh::clock::now() < until)
      for (const auto& rank : ranks) rank->attend();
    return over();
  };
  const auto barrier = [&](std::size_t of) {
    return ranks[of]->submit(ranks[of]->among({0, 1, 2}), {});
  };
  std::vector<byte> sent(wide_bytes, byte{7});
  std::vector<byte> here(sent.size());
  const auto broadcast = [&](std::size_t of, std::vector<byte>& memory) {
    const collective_call call{
        .what = collective_kind::broadcast, .type = dtype::u8, .root = 0, .count = memory.size()};
    return ranks[of]->submit(ranks[of]->among({0, 1}),
                             {.call = call, .in = memory.data(), .out = memory.data()});
  };
  const auto awaited = barrier(0);
  const auto received = broadcast(1, here);
  waiter sleeper{*ranks[0], awaited, {}};
  broadcast(0, sent);
  CHECK(attend_until([&] { return !received->how.pending(); }));
  barrier(1);
  barrier(2);
  CHECK(attend_until([&] { return !awaited->how.pending(); }));
  sleeper.join();
  CHECK((here == sent));
  for (const auto& rank : ranks) rank->depart();
}

// Rank 0 with two connections. The test plays rank 1.
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
    auto& talk = said[stream];
    talk.insert(talk.end(), frame.head.begin(), frame.head.end());
    talk.insert(talk.end(), frame.body, frame.body + frame.body_bytes);
    talk.insert(talk.end(), frame.trailer_bytes(), static_cast<byte>(trailer::whole));
    for (int turn = 0; turn < 50; ++turn) attend();
  }
  // Sends the queued bytes as far as the sockets accept them.
  void attend() {
    for (const std::size_t stream : {0, 1}) {
      auto& talk = said[stream];
      const auto took = ends[stream]
                            ? send(ends[stream].get(), talk.data(), talk.size(), MSG_NOSIGNAL)
                            : ssize_t{0};
      if (took > 0) talk.erase(talk.begin(), talk.begin() + took);
    }
    rank->attend();
  }
  std::shared_ptr<operation> submit(const collective_call& call) {
    return rank->submit(rank->among({0, 1}),
                        {.call = call, .in = memory.data(), .out = memory.data()});
  }
  static outgoing call_frame(const collective_call& call) {
    return make_outgoing({.kind = frame_kind::call, .ready = true}, encode(call));
  }
  outgoing chunk(part what, std::uint64_t index = 0, std::uint64_t number = 0) const {
    auto frame = make_outgoing({.kind = frame_kind::data,
                                .what = what,
                                .number = number,
                                .offset = index * chunk_bytes,
                                .body_bytes = chunk_bytes});
    frame.body = reinterpret_cast<const byte*>(body.data());
    frame.body_bytes = chunk_bytes;
    return frame;
  }
  bool pending(operation& of) const {
    return rank->poll(of, {}, {}).status == work_status::pending;
  }

  std::vector<file_descriptor> ends;  // by stream
  std::vector<byte> said[2];
  std::shared_ptr<mesh> rank = std::make_shared<mesh>(group_description{.world = 2}, 2);
  std::vector<float> memory = std::vector<float>(2 * wide_bytes / sizeof(float), 1.0f);
  std::vector<float> body = std::vector<float>(chunk_bytes / sizeof(float), 2.0f);
  collective_call reduce{
      .what = collective_kind::all_reduce, .type = dtype::f32, .count = memory.size()};
};

TEST_CASE("a chunk that arrives before its call waits in its connection") {
  hand_played with;
  const auto work = with.submit(with.reduce);
  with.say(1, with.chunk(part::contribution, 1));
  CHECK_FALSE(with.said[1].empty());  // the connection is not read further
  CHECK_FALSE(with.rank->aborted());
  with.say(0, with.call_frame(with.reduce));
  CHECK(with.said[1].empty());
  with.say(0, with.chunk(part::contribution, 0));
  const auto at = [&](std::size_t chunk) { return with.memory[chunk * with.body.size()]; };
  CHECK(at(0) == 3.0f);  // reduced
  CHECK(at(1) == 3.0f);
  CHECK(at(2) == 1.0f);
}

TEST_CASE("data that a rank sent before it left arrives although its bye frame is read first") {
  hand_played with;
  const collective_call call{.what = collective_kind::broadcast,
                             .type = dtype::f32,
                             .root = 1,
                             .count = wide_bytes / sizeof(float)};
  const auto work = with.submit(call);
  with.say(0, with.call_frame(call));
  with.say(0, with.chunk(part::result, 2));
  with.say(0, with.chunk(part::result, 0));
  with.say(0, make_outgoing({.kind = frame_kind::bye}));
  with.ends[0].reset();
  for (int turn = 0; turn < 4; ++turn) with.attend();
  REQUIRE(with.pending(*work));
  with.say(1, with.chunk(part::result, 3));
  with.say(1, with.chunk(part::result, 1));
  CHECK(with.rank->poll(*work, {}, {}).status == work_status::ok);
  CHECK(with.memory[call.count - 1] == 2.0f);
  with.say(1, make_outgoing({.kind = frame_kind::bye}));
  with.ends[1].reset();
  for (int turn = 0; turn < 4; ++turn) with.attend();
  CHECK_FALSE(with.rank->aborted());
}

TEST_CASE("loss of an additional connection or a protocol violation on it ends the group") {
  const auto why = [](const auto& misbehave) {
    hand_played with;
    const auto work = with.submit(with.reduce);
    with.say(0, with.call_frame(with.reduce));
    misbehave(with);
    for (int turn = 0; turn < 4; ++turn) with.attend();
    CHECK_FALSE(with.pending(*work));
    CHECK(with.rank->quiescent());
    return with.rank->why();
  };
  CHECK_THAT(why([](hand_played& with) { with.ends[1].reset(); }),
             Catch::StartsWith("rank 1 is lost: "));
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
          with.say(1, with.chunk(part::contribution, 0, 1));
        }) == "rank 1 sent a chunk of nothing that it called");
  CHECK_THAT(why([](hand_played& with) {
               with.say(1, with.chunk(part::contribution, 1));
               with.say(0, with.chunk(part::contribution, 1));
             }),
             Catch::Contains("a chunk twice"));
}

TEST_CASE("additional connections are not read while no large operation is in flight") {
  hand_played with;
  const auto work =
      with.submit({.what = collective_kind::all_reduce, .type = dtype::f32, .count = 9});
  with.ends[1].reset();
  for (int turn = 0; turn < 4; ++turn) with.attend();
  CHECK(with.pending(*work));
  CHECK_FALSE(with.rank->aborted());
}

}  // namespace
}  // namespace troupe::tcp
