// Goal: a peer that reads slowly, a few KiB per turn of the event loop, gets everything.
// Method: real ranks with a slow simulated wire. Deadlines are checked against a submission time
// far in the past.
#include "backends/tcp/mesh.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <sys/socket.h>

#include <algorithm>

#include "tests/support/catch.hpp"

namespace troupe::tcp {
namespace {

constexpr std::size_t wire_bytes = 4096;  // per direction and turn
constexpr std::size_t floats = std::size_t{4} << 20;

struct thin_wire {
  thin_wire() {
    for (const std::int32_t rank : {0, 1}) {
      ranks[rank] = std::make_shared<mesh>(group_description{.rank = rank, .world = 2}, 1);
      int pair[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
      ranks[rank]->adopt(1 - rank, 0, file_descriptor{pair[0]});
      ends[rank] = file_descriptor{pair[1]};
      fcntl(pair[1], F_SETFL, O_NONBLOCK);
    }
  }
  ~thin_wire() {
    for (const auto& rank : ranks) rank->depart();
  }
  thin_wire(const thin_wire&) = delete;
  thin_wire& operator=(const thin_wire&) = delete;

  void turn() {
    for (const auto& rank : ranks) rank->attend();
    for (const std::size_t from : {0, 1}) {
      auto& way = ways[from];
      if (way.empty()) {
        way.resize(wire_bytes);
        const auto came = recv(ends[from].get(), way.data(), way.size(), 0);
        way.resize(came > 0 ? static_cast<std::size_t>(came) : 0);
      }
      const auto went = send(ends[1 - from].get(), way.data(), way.size(), MSG_NOSIGNAL);
      if (went > 0) way.erase(way.begin(), way.begin() + went);
    }
  }
  std::shared_ptr<operation> submit(std::size_t rank, collective_kind what,
                                    std::vector<float>& memory) {
    collective_call call{.what = what, .type = dtype::f32, .count = memory.size()};
    if (what == collective_kind::broadcast) call.root = 0;
    return ranks[rank]->submit(
        ranks[rank]->among({0, 1}),
        {.call = call, .in = memory.data(), .out = memory.data(), .yes = rank == 0});
  }

  std::shared_ptr<mesh> ranks[2];
  file_descriptor ends[2];
  std::vector<std::byte> ways[2];
};

std::size_t allocated() {
  const auto heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

constexpr std::chrono::minutes deadline{1};
mesh::clock::time_point long_ago() { return mesh::clock::now() - 60 * deadline; }

TEST_CASE("a slow peer gets all data within the deadline and without extra copies") {
  const bool reduces = GENERATE(false, true);
  const auto what = reduces ? collective_kind::all_reduce : collective_kind::broadcast;
  thin_wire wire;
  std::vector<float> memory[2] = {std::vector<float>(floats, 1.0f),
                                  std::vector<float>(floats, 2.0f)};
  memory[0].back() = 5.0f;
  const auto before = allocated();
  std::shared_ptr<operation> works[2];
  for (const std::size_t rank : {0, 1}) works[rank] = wire.submit(rank, what, memory[rank]);
  while (!works[0]->steps.called(1) || !works[1]->steps.called(0)) wire.turn();
  std::size_t most = 0;
  int turns = 0;
  // Each poll claims that the operation was submitted an hour ago: progress must renew the deadline
  // of a minute.
  for (bool pending = true; pending; ++turns) {
    wire.turn();
    most = std::max(most, allocated());
    pending = false;
    for (const std::size_t rank : {0, 1}) {
      const auto how = wire.ranks[rank]->poll(*works[rank], long_ago(), deadline);
      if (how.status == work_status::pending)
        pending = true;
      else if (how.status != work_status::ok)
        FAIL("rank " << rank << ": " << how.text);
    }
  }
  CHECK(turns >= static_cast<int>(floats * sizeof(float) / wire_bytes));
  for (const auto& got : memory) {
    CHECK(std::count(got.begin(), got.end(), reduces ? 3.0f : 1.0f) ==
          static_cast<std::ptrdiff_t>(floats - 1));
    CHECK(got.back() == (reduces ? 7.0f : 5.0f));
  }
  // For both ranks together: an extra copy of a chunk would show.
  const std::size_t pool = reduces ? std::size_t{2} << 20 : 0;
  CAPTURE(most - before);
  CHECK(most < before + pool + (std::size_t{128} << 10));
}

TEST_CASE("an operation that waits for others is not late while bytes of these move") {
  thin_wire wire;
  std::vector<float> memory[2][3];
  for (auto& of_rank : memory)
    for (auto& one : of_rank) one.assign(floats / 8, 1.0f);
  std::vector<std::shared_ptr<operation>> works[2];
  for (const std::size_t rank : {0, 1})
    for (auto& one : memory[rank])
      works[rank].push_back(wire.submit(rank, collective_kind::all_reduce, one));
  const auto& last = works[0].back();
  while (!last->steps.called(1) || !works[1].back()->steps.called(0)) wire.turn();
  // Nothing moves in the last one yet. Its deadline passes while the first ones are on their way.
  last->last_bytes = long_ago();
  works[1].back()->last_bytes = long_ago();
  for (bool pending = true; pending;) {
    wire.turn();
    pending = false;
    for (const std::size_t rank : {0, 1}) {
      const auto how = wire.ranks[rank]->poll(*works[rank].back(), long_ago(), deadline);
      if (how.status == work_status::pending)
        pending = true;
      else if (how.status != work_status::ok)
        FAIL("rank " << rank << ": " << how.text);
    }
  }
  for (const auto& of_rank : memory)
    for (const auto& one : of_rank)
      CHECK(std::ranges::all_of(one, [](float x) { return x == 2.0f; }));
}

TEST_CASE("the deadline of a call that the peer has not made starts at submission") {
  thin_wire wire;
  std::vector<float> memory(floats, 1.0f);
  const auto work = wire.submit(0, collective_kind::broadcast, memory);
  work_result how;
  do {
    wire.turn();
    how = wire.ranks[0]->poll(*work, long_ago(), deadline);
  } while (how.status == work_status::pending);
  CHECK(how.status == work_status::timed_out);
  CHECK(how.missing == std::vector<std::int32_t>{1});
  CHECK(how.text == "broadcast(float32, 4194304 from 0): waited 60 s for rank 1");
}

}  // namespace
}  // namespace troupe::tcp
