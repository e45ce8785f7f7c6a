// Goal: the state machine of one operation is right without sockets, over a simulated network that
// delivers in any order that several connections allow.
#include "backends/tcp/exchange.hpp"
#include "tests/support/reference_reduction.hpp"
#include "tests/support/sanitized.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "tests/support/catch.hpp"

namespace troupe::tcp {
namespace {

using testing::bytes;

const std::atomic<bool> never{false};

// A data chunk or a control message in transit between two members.
struct message {
  bool call = false;
  bool ready = false;
  parcel of;
  bytes body;
};

// All members of one operation and the network between them.
class company {
public:
  company(std::size_t members, collective_call what, std::uint64_t seed)
      : members_(members), what_(what), random_(seed), wires_(members * members) {
    for (std::size_t i = 0; i < members; ++i) exchanges_.emplace_back(members, i, pool_);
  }

  void run(const std::vector<const void*>& in, const std::vector<void*>& out) {
    std::vector<std::size_t> order(members_);
    for (std::size_t i = 0; i < members_; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    std::size_t called = 0;
    while (std::any_of(exchanges_.begin(), exchanges_.end(), [](auto& e) { return !e.done(); })) {
      if (called < members_ && random_() % 4 == 0) {
        const auto member = order[called++];
        call(member, in[member], out[member]);
      }
      const auto wire = random_() % wires_.size();
      if (random_() % 2 == 0)
        deliver(wire / members_, wire % members_);
      else
        take(wire / members_, wire % members_);
    }
    for (auto& e : exchanges_) e.finish();
  }

private:
  auto& wire(std::size_t from, std::size_t to) { return wires_[from * members_ + to]; }

  void call(std::size_t member, const void* in, void* out) {
    const bool root = static_cast<std::int32_t>(member) == what_.root;
    REQUIRE(exchanges_[member].call(member, what_, root));
    const bool at_once = random_() % 2 == 0;
    if (at_once) exchanges_[member].start(in, out, never);
    for (std::size_t to = 0; to < members_; ++to)
      if (to != member) wire(member, to).push_back({.call = true, .ready = at_once});
    if (at_once) return;
    exchanges_[member].start(in, out, never);
    for (std::size_t to = 0; to < members_; ++to)
      if (to != member) wire(member, to).push_back({.ready = true});
  }

  void take(std::size_t from, std::size_t to) {
    if (from == to) return;
    const auto next = exchanges_[from].next(to);
    if (!next) return;
    bytes body(next->from, next->from + next->bytes);
    wire(from, to).push_back({.of = *next, .body = std::move(body)});
    exchanges_[from].sent(to);
  }

  void deliver(std::size_t from, std::size_t to) {
    auto& queue = wire(from, to);
    if (queue.empty()) return;
    // Data may overtake data, because it travels over several connections.
    const bool data = !queue.front().call && !queue.front().ready;
    const auto next =
        queue.begin() + static_cast<std::ptrdiff_t>(data ? random_() % queue.size() : 0);
    const auto what = std::move(*next);
    queue.erase(next);
    auto& at = exchanges_[to];
    if (what.call) REQUIRE(at.call(from, what_, static_cast<std::int32_t>(from) == what_.root));
    if (what.ready) at.ready(from);
    if (what.call || what.ready) return;
    auto* place = at.place(from, what.of.what, what.of.offset, what.body.size());
    if (!what.body.empty()) std::memcpy(place, what.body.data(), what.body.size());
    at.landed(from, what.of.what, what.of.offset, never);
  }

  const std::size_t members_;
  const collective_call what_;
  std::mt19937_64 random_;
  chunk_pool pool_;
  std::vector<exchange> exchanges_;
  std::vector<std::deque<message>> wires_;
};

std::vector<const void*> reading(const std::vector<bytes>& memory) {
  std::vector<const void*> result;
  for (const auto& m : memory) result.push_back(m.data());
  return result;
}
std::vector<void*> writing(std::vector<bytes>& memory) {
  std::vector<void*> result;
  for (auto& m : memory) result.push_back(m.data());
  return result;
}

// Sizes around the values where the protocol changes: none, one, a cache line, the largest payload,
// a chunk, a window of chunks.
std::size_t some_count(std::mt19937_64& random, std::size_t element) {
  constexpr std::size_t edges[] = {0, 1, 64, payload_max, chunk_bytes, (window + 1) * chunk_bytes};
  const auto edge = edges[random() % std::size(edges)] / element;
  return edge + random() % 40 - std::min<std::size_t>(edge, random() % 20);
}

TEST_CASE("all_reduce and reduce_scatter give the canonical bits in every order of delivery") {
  const auto seed = GENERATE(range(1, testing::sanitized ? 10 : 61));
  std::mt19937_64 random{static_cast<std::uint64_t>(seed)};
  const auto members = 2 + random() % 4;
  const auto type = testing::all_dtypes[random() % 2 == 0 ? 7 : 6];  // float32, bfloat16
  const auto operation = random() % 2 == 0 ? reduction::sum : reduction::mean;
  const bool scatters = random() % 2 == 0;
  const auto count = some_count(random, size_of(type));
  CAPTURE(seed, members, count, to_string(type), scatters);
  std::vector<bytes> leaves;
  for (std::size_t i = 0; i < members; ++i)
    leaves.push_back(testing::odd_values(type, scatters ? count * members : count,
                                         static_cast<std::int32_t>(i), random()));
  const auto expected = testing::reference_reduction(type, operation, leaves);
  auto in = leaves;
  std::vector<bytes> out(members, bytes(count * size_of(type)));
  company all{members,
              {.what = scatters ? collective_kind::reduce_scatter : collective_kind::all_reduce,
               .type = type,
               .operation = operation,
               .count = count},
              random()};
  all.run(reading(in), scatters ? writing(out) : writing(in));
  for (std::size_t i = 0; i < members; ++i) {
    if (!scatters) {
      REQUIRE(in[i] == expected);
      continue;
    }
    REQUIRE(in[i] == leaves[i]);
    REQUIRE(std::equal(out[i].begin(), out[i].end(),
                       expected.begin() + static_cast<std::ptrdiff_t>(i * out[i].size())));
  }
}

TEST_CASE("broadcast and all_gather put every byte in its place in every order of delivery") {
  const auto seed = GENERATE(range(1, testing::sanitized ? 8 : 41));
  std::mt19937_64 random{static_cast<std::uint64_t>(seed)};
  const auto members = 2 + random() % 4;
  const auto count = some_count(random, 2);
  const bool gathers = random() % 2 == 0;
  const auto root = random() % members;
  CAPTURE(seed, members, count, gathers, root);
  std::vector<bytes> pieces;
  bytes all_pieces;
  for (std::size_t i = 0; i < members; ++i) {
    pieces.push_back(
        testing::odd_values(dtype::i16, count, static_cast<std::int32_t>(i), random()));
    all_pieces.insert(all_pieces.end(), pieces[i].begin(), pieces[i].end());
  }
  const auto expected = gathers ? all_pieces : pieces[root];
  std::vector<bytes> out(members, bytes(expected.size()));
  auto& into = gathers ? out : pieces;
  company all{members,
              {.what = gathers ? collective_kind::all_gather : collective_kind::broadcast,
               .type = dtype::i16,
               .root = gathers ? -1 : static_cast<std::int32_t>(root),
               .count = count},
              random()};
  all.run(reading(pieces), writing(into));
  for (const auto& result : into) REQUIRE(result == expected);
}

TEST_CASE("a chunk that is not expected is refused before it gets memory") {
  chunk_pool pool;
  std::vector<float> memory(1 << 20);
  const collective_call large{.what = collective_kind::all_reduce,
                              .type = dtype::f32,
                              .operation = reduction::sum,
                              .count = memory.size()};
  exchange e{2, 0, pool};
  CHECK_THROWS_AS(e.ready(1), wire_error);
  CHECK_THROWS_AS(e.place(1, part::payload, 0, 4), wire_error);
  REQUIRE(e.call(1, large, false));
  CHECK_THROWS_AS(e.call(1, large, false), wire_error);
  CHECK_THROWS_AS(e.place(1, part::contribution, 0, chunk_bytes), wire_error);  // not started
  REQUIRE(e.call(0, large, false));
  e.start(memory.data(), memory.data(), never);
  CHECK_THROWS_AS(e.place(1, part::contribution, 0, chunk_bytes), wire_error);  // not ready
  e.ready(1);
  CHECK_THROWS_AS(e.ready(1), wire_error);
  CHECK_THROWS_AS(e.place(1, part::payload, 0, memory.size() * 4), wire_error);
  CHECK_THROWS_AS(e.place(1, part::contribution, window * chunk_bytes, chunk_bytes), wire_error);
  CHECK_THROWS_AS(e.place(1, part::contribution, 1, chunk_bytes), wire_error);
  CHECK_THROWS_AS(e.place(1, part::contribution, 0, chunk_bytes - 1), wire_error);
  CHECK_THROWS_AS(e.place(1, part::result, 0, chunk_bytes), wire_error);  // without a contribution
  REQUIRE(e.place(1, part::contribution, 0, chunk_bytes) != nullptr);
  CHECK_THROWS_AS(e.place(1, part::contribution, 0, chunk_bytes), wire_error);  // in transit
  e.landed(1, part::contribution, 0, never);
  CHECK_THROWS_AS(e.place(1, part::contribution, 0, chunk_bytes), wire_error);  // reduced
  REQUIRE(e.next(1)->what == part::result);
  REQUIRE(e.next(1)->what == part::contribution);
  REQUIRE(e.place(1, part::result, 0, chunk_bytes) != nullptr);
  CHECK_THROWS_AS(e.place(1, part::result, 0, chunk_bytes), wire_error);  // a second time
}

TEST_CASE("a call that differs is detected in any order of arrival") {
  chunk_pool pool;
  const collective_call sum{.what = collective_kind::all_reduce, .type = dtype::f32, .count = 3};
  auto max = sum;
  max.operation = reduction::max;
  for (const std::size_t odd : {0u, 1u, 2u}) {
    exchange e{3, 0, pool};
    CHECK(e.call((odd + 1) % 3, sum, false));
    CHECK_FALSE(e.call(odd, max, false));
  }
}

}  // namespace
}  // namespace troupe::tcp
