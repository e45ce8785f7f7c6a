// The communicator port over MPI. Every process of mpirun runs these cases in the same order, as
// the rank that mpirun made it; each case is a generation of its own.
#include "backends/canonical_reduction.hpp"
#include "backends/mpi/mpi.hpp"
#include "tests/support/reference_reduction.hpp"

#include <algorithm>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

using std::chrono::seconds;

placed_rank place() {
  const auto number = [](const char* name) {
    const auto* text = std::getenv(name);
    return text ? std::atoi(text) : -1;
  };
  return {number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_SIZE")};
}
const std::int32_t rank = place().rank;
const std::int32_t world = place().world;

mpi_backend& backend() {
  static mpi_backend one{place()};
  return one;
}

std::shared_ptr<communicator> next_generation(std::chrono::nanoseconds deadline = seconds{60}) {
  static std::uint64_t generation = 0;
  return backend().open({.job = job_id{7},
                         .generation = generation_id{++generation},
                         .rank = rank,
                         .world = world,
                         .deadline = deadline});
}

template <class E>
std::string thrown_by(const std::function<void()>& what) {
  try {
    what();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string{"(another exception: "} + e.what() + ")";
  }
  return "(nothing was thrown)";
}

buffer floats(std::vector<float>& values) { return {values.data(), values.size(), dtype::f32}; }

// Small whole numbers: their sums and products are exact in any order and any type.
template <class T>
bytes stored(const std::vector<int>& numbers) {
  bytes memory(numbers.size() * sizeof(T));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto value = static_cast<T>(numbers[i]);
    std::memcpy(memory.data() + i * sizeof(T), &value, sizeof(T));
  }
  return memory;
}

// 0 to 3 as f16 and bf16.
bytes stored_halves(const std::vector<int>& numbers, dtype type) {
  constexpr std::uint16_t f16[] = {0x0000, 0x3c00, 0x4000, 0x4200};
  constexpr std::uint16_t bf16[] = {0x0000, 0x3f80, 0x4000, 0x4040};
  bytes memory(numbers.size() * 2);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    std::memcpy(memory.data() + 2 * i, (type == dtype::f16 ? f16 : bf16) + numbers[i], 2);
  return memory;
}

bytes small_numbers(dtype type, std::size_t count, std::int32_t of) {
  std::vector<int> numbers(count);
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] = static_cast<int>((i * 7 + static_cast<std::size_t>(of) * 5 + i / 3) % 4);
  switch (type) {
    case dtype::u8: return stored<std::uint8_t>(numbers);
    case dtype::i8: return stored<std::int8_t>(numbers);
    case dtype::i16: return stored<std::int16_t>(numbers);
    case dtype::i32: return stored<std::int32_t>(numbers);
    case dtype::i64: return stored<std::int64_t>(numbers);
    case dtype::f32: return stored<float>(numbers);
    case dtype::f64: return stored<double>(numbers);
    case dtype::boolean:
      for (auto& n : numbers) n = n > 1;
      return stored<std::uint8_t>(numbers);
    case dtype::c64: return stored<std::complex<float>>(numbers);
    case dtype::c128: return stored<std::complex<double>>(numbers);
    case dtype::f16:
    case dtype::bf16: return stored_halves(numbers, type);
  }
  return {};
}

std::vector<bytes> leaves_of(const std::function<bytes(std::int32_t)>& make, std::int32_t ranks) {
  std::vector<bytes> leaves;
  for (std::int32_t of = 0; of < ranks; ++of) leaves.push_back(make(of));
  return leaves;
}

bytes piece(const bytes& of, std::size_t index) {
  const auto length = of.size() / static_cast<std::size_t>(world);
  const auto from = of.begin() + static_cast<std::ptrdiff_t>(index * length);
  return {from, from + static_cast<std::ptrdiff_t>(length)};
}

// Every rank ended with these bytes.
bool same_everywhere(communicator& c, bytes mine) {
  bytes all(mine.size() * static_cast<std::size_t>(world));
  c.all_gather(whole(mine, dtype::u8), whole(all, dtype::u8))->wait();
  for (std::int32_t of = 0; of < world; ++of)
    if (piece(all, static_cast<std::size_t>(of)) != mine) return false;
  return true;
}

TEST_CASE("mpi is usable under mpirun only, and knows its place") {
  REQUIRE(world >= 1);
  CHECK(backend().unusable().empty());
  CHECK(backend().placed() == place());
  mpi_backend elsewhere{std::nullopt};
  CHECK_THAT(elsewhere.unusable(), Catch::Contains("mpirun"));
  CHECK_THROWS_AS(elsewhere.open({}), user_error);
  CHECK_THROWS_AS(backend().open({.rank = rank, .world = world + 1}), std::invalid_argument);
}

TEST_CASE("all_reduce computes every dtype and reduction") {
  const auto c = next_generation();
  for (const auto type : all_dtypes)
    for (const auto operation : all_reductions) {
      if (!refusal(type, operation).empty()) continue;
      CAPTURE(to_string(type), to_string(operation));
      for (const std::size_t count : {0, 1, 5, 1037}) {
        const auto leaves =
            leaves_of([&](std::int32_t of) { return small_numbers(type, count, of); }, world);
        auto memory = leaves[static_cast<std::size_t>(rank)];
        c->all_reduce(whole(memory, type), operation)->wait();
        CHECK(memory == reference_reduction(type, operation, leaves));
      }
    }
}

TEST_CASE("odd numbers come out the same on all ranks") {
  const auto c = next_generation();
  for (const auto type : all_dtypes)
    for (const auto operation : all_reductions) {
      if (!refusal(type, operation).empty()) continue;
      CAPTURE(to_string(type), to_string(operation));
      const auto leaves =
          leaves_of([&](std::int32_t of) { return odd_values(type, 515, of, 515); }, world);
      auto memory = leaves[static_cast<std::size_t>(rank)];
      c->all_reduce(whole(memory, type), operation)->wait();
      CHECK(same_everywhere(*c, memory));
      // In these no order matters: NaN propagates and -0 is below +0 whoever holds them.
      if (operation == reduction::min || operation == reduction::max)
        CHECK(memory == reference_reduction(type, operation, leaves));
    }
}

TEST_CASE("a mean overflows only where the mean itself does") {
  const auto c = next_generation();
  for (const float value : {3e38f, -3e38f, 0x1p-140f}) {
    std::vector<float> memory(100, value);
    c->all_reduce(floats(memory), reduction::mean)->wait();
    CHECK(memory == std::vector<float>(100, value));
    std::vector<float> all(static_cast<std::size_t>(world) * 10, value);
    std::vector<float> mine(10);
    c->reduce_scatter(floats(all), floats(mine), reduction::mean)->wait();
    CHECK(mine == std::vector<float>(10, value));
    CHECK(all == std::vector<float>(static_cast<std::size_t>(world) * 10, value));
  }
}

TEST_CASE("broadcast, all_gather and reduce_scatter, in place and not") {
  const auto c = next_generation();
  const auto self = static_cast<std::size_t>(rank);
  for (const bool in_place : {false, true})
    for (const std::size_t count : {0, 1, 77, 40000}) {
      CAPTURE(in_place, count);
      for (std::int32_t root = 0; root < world; ++root) {
        auto memory = odd_values(dtype::bf16, count, rank, count);
        c->broadcast(whole(memory, dtype::bf16), root)->wait();
        REQUIRE(memory == odd_values(dtype::bf16, count, root, count));
      }
      const auto pieces =
          leaves_of([&](std::int32_t of) { return odd_values(dtype::i64, count, of, 1); }, world);
      bytes gathered;
      for (const auto& one : pieces) gathered.insert(gathered.end(), one.begin(), one.end());
      bytes out(gathered.size());
      auto mine = pieces[self];
      auto in = whole(mine, dtype::i64);
      if (in_place) {
        in.data = out.data() + self * mine.size();
        std::copy(mine.begin(), mine.end(), static_cast<std::byte*>(in.data));
      }
      c->all_gather(in, whole(out, dtype::i64))->wait();
      REQUIRE(out == gathered);
      for (const auto type : {dtype::f32, dtype::f16}) {
        const auto total = count * static_cast<std::size_t>(world);
        const auto leaves =
            leaves_of([&](std::int32_t of) { return small_numbers(type, total, of); }, world);
        auto from = leaves[self];
        bytes result(count * size_of(type));
        auto to = whole(result, type);
        if (in_place) to.data = from.data() + self * result.size();
        c->reduce_scatter(whole(from, type), to, reduction::mean)->wait();
        const auto expected = piece(reference_reduction(type, reduction::mean, leaves), self);
        for (std::size_t p = 0; p < static_cast<std::size_t>(world); ++p) {
          const bool written = in_place && p == self;
          REQUIRE(piece(from, p) == (written ? expected : piece(leaves[self], p)));
        }
        if (!in_place) REQUIRE(result == expected);
      }
    }
}

TEST_CASE("decide agrees by all and by any; barriers pass") {
  const auto c = next_generation();
  for (int mask = 0; mask < 1 << world; ++mask) {
    const bool yes = (mask >> rank & 1) != 0;
    CHECK(c->decide(yes, true) == (mask == (1 << world) - 1));
    CHECK(c->decide(yes, false) == (mask != 0));
    c->barrier("mask " + std::to_string(mask))->wait();
  }
}

TEST_CASE("subgroups have an order of their own and the canonical bits") {
  const auto c = next_generation();
  if (world < 3) return;
  const std::vector<subgroup> groups{{{0, 1}}, {{1, 2}}, {{0, 2}}, {{0, 1, 2}}};
  // Each member walks through its groups in another order.
  std::vector<work_ptr> works;
  std::vector<std::pair<bytes, bytes>> results(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto at = (i + static_cast<std::size_t>(rank)) % groups.size();
    const auto& ranks = groups[at].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    std::vector<bytes> leaves;
    for (const auto of : ranks) leaves.push_back(odd_values(dtype::f32, 999, of, at));
    results[at].second = reference_reduction(dtype::f32, reduction::mean, leaves);
    results[at].first = odd_values(dtype::f32, 999, rank, at);
    works.push_back(
        c->all_reduce(whole(results[at].first, dtype::f32), reduction::mean, groups[at]));
  }
  for (const auto& work : works) work->wait();
  for (const auto& [result, expected] : results) CHECK(result == expected);
  if (rank > 1) return c->barrier("pairs")->wait();
  const subgroup pair{{0, 1}};
  std::vector<float> values{static_cast<float>(rank), 1};
  c->broadcast(floats(values), 1, pair)->wait();
  CHECK(values == std::vector<float>{1, 1});
  std::vector<float> one{static_cast<float>(rank)};
  c->all_gather(floats(one), floats(values), pair)->wait();
  CHECK(values == std::vector<float>{0, 1});
  c->reduce_scatter(floats(values), floats(one), reduction::sum, pair)->wait();
  CHECK(one[0] == static_cast<float>(2 * rank));
  CHECK(c->decide(rank == 0, false, pair));
  c->barrier("pairs")->wait();
}

TEST_CASE("many operations in flight, waited for from the last to the first") {
  const auto c = next_generation();
  std::vector<std::vector<float>> memory(500, std::vector<float>(64, 1));
  std::vector<work_ptr> works;
  for (auto& one : memory) works.push_back(c->all_reduce(floats(one), reduction::sum));
  for (auto one = works.rbegin(); one != works.rend(); ++one) (*one)->wait();
  for (const auto& one : memory) CHECK(one == std::vector<float>(64, static_cast<float>(world)));
  CHECK(c->quiescent());
}

TEST_CASE("operations complete without anybody waiting") {
  const auto c = next_generation();
  std::vector<float> values(1 << 20, 1);
  const auto work = c->all_reduce(floats(values), reduction::sum);
  while (!c->quiescent()) std::this_thread::yield();
  CHECK(work->poll().status == work_status::ok);
  CHECK(values.back() == static_cast<float>(world));
}

TEST_CASE("ranks that disagree are told who called what, and nothing is written") {
  if (world < 2) return;
  for (const std::int32_t odd : {0, world - 1})
    for (const bool label : {false, true}) {
      const auto c = next_generation();
      std::vector<float> values(10, 1);
      const auto text = thrown_by<collective_mismatch>([&] {
        if (label)
          c->barrier(rank == odd ? "teardown" : "epoch")->wait();
        else if (rank == odd)
          c->broadcast(floats(values), 0)->wait();
        else
          c->all_reduce(floats(values), reduction::sum)->wait();
      });
      CHECK_THAT(text, Catch::StartsWith("ranks disagree on collective 0: "));
      const auto wanted = label ? "barrier \"teardown\"" : "broadcast(float32, 10 from 0)";
      CHECK_THAT(text, Catch::Contains("rank " + std::to_string(odd) + ": " + wanted));
      CHECK(values == std::vector<float>(10, 1));
      CHECK(c->aborted());
      CHECK(c->quiescent());
    }
}

TEST_CASE("a deadline names the ranks that are missing") {
  if (world < 2) return;
  const auto c = next_generation(std::chrono::milliseconds{100});
  const auto late = world - 1;
  std::vector<float> values(10, 1);
  if (rank == late) {
    while (!c->aborted()) std::this_thread::yield();
    CHECK_THAT(thrown_by<generation_closed>([&] { c->barrier("late")->wait(); }),
               Catch::Contains("waited 0.1 s for rank " + std::to_string(late)));
    return;
  }
  const auto work = c->all_reduce(floats(values), reduction::sum);
  // Another rank's clock may run out first: then this one hears of it.
  CHECK_THAT(thrown_by<collective_timeout>([&] { work->wait(); }),
             Catch::Contains("waited 0.1 s for rank " + std::to_string(late)));
  CHECK(values == std::vector<float>(10, 1));
}

TEST_CASE("a deadline holds when nobody else has opened the generation") {
  if (world < 2) return;
  static std::uint64_t far = 1000000;
  const auto open = [&](std::chrono::nanoseconds deadline) {
    return backend().open(
        {.generation = generation_id{++far}, .rank = rank, .world = world, .deadline = deadline});
  };
  if (rank == 0) {
    const auto c = open(std::chrono::milliseconds{50});
    CHECK_THROWS_AS(c->barrier("alone")->wait(), collective_timeout);
    return;
  }
  // Late, so that MPI has something to match.
  const auto c = open(seconds{0});
  while (!c->aborted()) std::this_thread::yield();
}

TEST_CASE("abort wakes whoever waits, here and elsewhere, with the first reason") {
  if (world < 2) return;
  const auto c = next_generation();
  // The word of an abort may overtake the end of a barrier that all have reached.
  const auto text = thrown_by<generation_closed>([&] {
    c->barrier("all here")->wait();
    if (rank == 0) {
      c->abort("rank 0 had enough");
      c->abort("another reason");
    }
    for (;;) c->barrier("never")->wait();
  });
  CHECK(c->aborted());
  CHECK(text == "rank 0 had enough");
}

TEST_CASE("abort in the middle of large operations ends in quiescence everywhere") {
  for (int round = 0; round < 5; ++round) {
    const auto c = next_generation();
    std::vector<std::vector<float>> memory(6, std::vector<float>(1 << 18, 1));
    std::vector<work_ptr> works;
    for (auto& one : memory) works.push_back(c->all_reduce(floats(one), reduction::sum));
    works[static_cast<std::size_t>(round)]->poll();
    if (rank == round % world) c->abort("enough");
    for (const auto& work : works) {
      try {
        work->wait();
      } catch (const generation_closed&) {
      }
    }
    // Whoever heard of it late may have finished all of them.
    while (!c->quiescent()) std::this_thread::yield();
  }
}

TEST_CASE("a rank that leaves is missed") {
  if (world < 2) return;
  auto c = next_generation();
  if (rank == world - 1) {
    c->barrier("all here")->wait();
    return;
  }
  // As above: another rank may notice first.
  CHECK_THAT(thrown_by<generation_closed>([&] {
               c->barrier("all here")->wait();
               c->barrier("after")->wait();
             }),
             Catch::Contains("rank " + std::to_string(world - 1) + " has left"));
}

TEST_CASE("ranks of different generations do not meet") {
  if (world < 2) return;
  const auto c = backend().open({.job = job_id{static_cast<std::uint64_t>(rank)},
                                 .generation = generation_id{1},
                                 .rank = rank,
                                 .world = world});
  CHECK_THAT(thrown_by<generation_closed>([&] { c->barrier("x")->wait(); }),
             Catch::Contains("opened generation 1 of job"));
}

TEST_CASE("generations come and go without growth") {
  const auto count = [](const char* folder) {
    const std::filesystem::directory_iterator all{folder};
    return std::distance(begin(all), end(all));
  };
  std::ptrdiff_t files = 0;
  std::ptrdiff_t threads = 0;
  for (int i = 0; i < 300; ++i) {
    const auto c = next_generation();
    std::vector<float> values(100, 1);
    c->all_reduce(floats(values), reduction::sum)->wait();
    REQUIRE(values[99] == static_cast<float>(world));
    if (i == 20) {
      files = count("/proc/self/fd");
      threads = count("/proc/self/task");
    }
  }
  CHECK(count("/proc/self/fd") <= files);
  CHECK(count("/proc/self/task") <= threads);
}

}  // namespace
}  // namespace troupe::testing
