// Goal: when a group makes no progress, the error names the rank that holds the others up, not a
// rank that waits for it.
#include "backends/tcp/stall_report.hpp"
#include "backends/tcp/mesh.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>

#include "tests/support/catch.hpp"

namespace troupe::tcp {
namespace {

using ranks = std::vector<std::int32_t>;
using namespace std::chrono_literals;

TEST_CASE("blame moves to the rank that the stalled rank itself waits for") {
  const auto named = [](const ranks& first, const waits_of& answers) {
    return holding_up(0, first, answers);
  };
  CHECK(named({1}, {}) == ranks{1});
  CHECK(named({1, 2}, {{1, {2}}}) == ranks{2});
  CHECK(named({1}, {{1, {2}}, {2, {3}}}) == ranks{3});
  CHECK(named({1, 2}, {{1, {1}}, {2, {1}}}) == ranks{1});  // rank 1 has not called
  CHECK(named({1, 2}, {{1, {0, 2, 3}}, {2, {2}}}) == ranks{2, 3});
  CHECK(named({1, 2}, {{1, {0, 2}}, {2, {0, 1}}}) == ranks{});  // bytes in transit
  CHECK(named({1}, {{1, {}}}) == ranks{});
}

// Two connected sockets that do not wait.
std::array<file_descriptor, 2> pair_of_sockets() {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  return {file_descriptor{ends[0]}, file_descriptor{ends[1]}};
}

// Three ranks of one world in one thread. The data that rank 2 sends to rank 0 is held up after its
// call.
class three_ranks {
public:
  three_ranks() {
    for (std::int32_t rank = 0; rank < 3; ++rank)
      meshes_.push_back(std::make_shared<mesh>(group_description{.rank = rank, .world = 3}, 1));
    connect(0, 1);
    connect(1, 2);
    auto near = pair_of_sockets();
    auto far = pair_of_sockets();
    meshes_[0]->adopt(2, 0, std::move(near[0]));
    meshes_[2]->adopt(0, 0, std::move(far[0]));
    to_0_ = std::move(near[1]);
    to_2_ = std::move(far[1]);
  }
  ~three_ranks() {
    for (const auto& rank : meshes_) rank->depart();
  }
  three_ranks(const three_ranks&) = delete;
  three_ranks& operator=(const three_ranks&) = delete;

  mesh& rank(std::size_t which) { return *meshes_[which]; }
  std::shared_ptr<operation> reduce(std::size_t which) {
    auto& memory = memory_[which];
    memory.assign(180000, 1.0f);
    const collective_call call{
        .what = collective_kind::all_reduce, .type = dtype::f32, .count = memory.size()};
    return rank(which).submit(rank(which).among({0, 1, 2}),
                              {.call = call, .in = memory.data(), .out = memory.data()});
  }
  void attend(std::size_t ranks) {
    for (std::size_t which = 0; which < ranks; ++which) rank(which).attend();
    carry();
  }

private:
  void connect(std::int32_t a, std::int32_t b) {
    auto ends = pair_of_sockets();
    meshes_[static_cast<std::size_t>(a)]->adopt(b, 0, std::move(ends[0]));
    meshes_[static_cast<std::size_t>(b)]->adopt(a, 0, std::move(ends[1]));
  }
  void carry() {
    std::vector<std::byte> bytes(1 << 20);
    const auto from_0 = recv(to_0_.get(), bytes.data(), bytes.size(), 0);
    if (from_0 > 0)
      REQUIRE(send(to_2_.get(), bytes.data(), static_cast<std::size_t>(from_0), 0) == from_0);
    if (called_ >= call_bytes) return;
    const auto from_2 = recv(to_2_.get(), bytes.data(), call_bytes - called_, 0);
    if (from_2 <= 0) return;
    called_ += static_cast<std::size_t>(from_2);
    REQUIRE(send(to_0_.get(), bytes.data(), static_cast<std::size_t>(from_2), 0) == from_2);
  }

  static const std::size_t call_bytes;
  std::vector<std::shared_ptr<mesh>> meshes_;
  std::array<std::vector<float>, 3> memory_;
  file_descriptor to_0_, to_2_;  // the test's ends between ranks 0 and 2
  std::size_t called_ = 0;
};

const std::size_t three_ranks::call_bytes = header_bytes + encode(collective_call{}).size();

TEST_CASE("a stalled rank that has served one peer and not the other is named by both") {
  const std::size_t first = GENERATE(0, 1);  // the rank that notices the deadline first
  three_ranks world;
  std::vector<std::shared_ptr<operation>> works;
  for (std::size_t rank = 0; rank < 3; ++rank) works.push_back(world.reduce(rank));
  for (int turn = 0; turn < 100; ++turn) world.attend(3);
  const auto poll = [&](std::size_t rank, std::chrono::nanoseconds deadline) {
    return world.rank(rank).poll(*works[rank], {}, deadline);
  };
  REQUIRE(poll(0, {}).status == work_status::pending);
  REQUIRE(poll(1, {}).status == work_status::pending);
  REQUIRE(works[1]->steps.owes(0));
  REQUIRE_FALSE(works[1]->steps.owes(2));

  while (poll(first, 1ns).status == work_status::pending) world.attend(2);
  for (int turn = 0; turn < 10; ++turn) world.attend(2);
  for (const std::size_t rank : {0, 1}) {
    const auto result = poll(rank, 1ns);
    CHECK(result.status == work_status::timed_out);
    CHECK(result.missing == ranks{2});
  }
}

TEST_CASE("a rank that has not called is named instead of a rank that waits for it") {
  three_ranks world;
  const std::vector<std::shared_ptr<operation>> works{world.reduce(0), world.reduce(1)};
  for (int turn = 0; turn < 20; ++turn) world.attend(3);
  const auto poll = [&] { return world.rank(0).poll(*works[0], {}, 1ns); };
  while (poll().status == work_status::pending) world.attend(3);
  CHECK(poll().missing == ranks{2});
  CHECK(poll().text == "all_reduce(sum, float32, 180000): waited 1e-09 s for rank 2");
}

TEST_CASE("two operations polled in turn both end at their deadlines when a rank is silent") {
  three_ranks world;
  std::vector<std::shared_ptr<operation>> works;
  for (int operations = 0; operations < 2; ++operations) {
    works.push_back(world.reduce(0));
    world.reduce(1);
  }
  for (int turn = 0; turn < 20; ++turn) world.attend(2);
  const auto poll = [&](std::size_t which) { return world.rank(0).poll(*works[which], {}, 1ns); };
  while (poll(0).status == work_status::pending && poll(1).status == work_status::pending)
    world.attend(2);
  CHECK(world.rank(0).why() == "all_reduce(sum, float32, 180000): waited 1e-09 s for rank 2");
}

}  // namespace
}  // namespace troupe::tcp
