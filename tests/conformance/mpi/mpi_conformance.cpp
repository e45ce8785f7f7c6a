// Goal: the mpi adapter keeps the contract of the communicator port. Every process of mpirun runs
// these cases in the same order, as the rank that mpirun assigned to it. Each case opens a
// generation of its own.
#include "tests/conformance/mpi/mpi_suite.hpp"

#include "backends/collective/canonical_reduction.hpp"
#include "tests/support/reference_reduction.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

// Small integers: their sums and products are exact in any order and any type.
template <class T>
bytes stored(const std::vector<int>& numbers) {
  bytes memory(numbers.size() * sizeof(T));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto value = static_cast<T>(numbers[i]);
    std::memcpy(memory.data() + i * sizeof(T), &value, sizeof(T));
  }
  return memory;
}

// The numbers 0 to 3 as f16 and bf16.
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

// True if every rank has these bytes.
bool same_everywhere(communicator& c, bytes mine) {
  bytes all(mine.size() * static_cast<std::size_t>(world));
  c.all_gather(whole(mine, dtype::u8), whole(all, dtype::u8))->wait();
  for (std::int32_t of = 0; of < world; ++of)
    if (piece(all, static_cast<std::size_t>(of)) != mine) return false;
  return true;
}

TEST_CASE("mpi is usable only under mpirun and knows its rank and world") {
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

TEST_CASE("NaN and infinities and extreme values reduce to equal bytes on all ranks") {
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
      // The order does not matter for min and max: NaN propagates from any rank and -0 is below +0.
      if (operation == reduction::min || operation == reduction::max)
        CHECK(memory == reference_reduction(type, operation, leaves));
    }
}

TEST_CASE("a mean overflows only if the mean itself is out of range") {
  const auto c = next_generation();
  // Partial sums are rounded. They are exact if they stay powers of two times the value.
  const bool exact = (world & (world - 1)) == 0;
  const auto near = [&](const std::vector<float>& all, float value) {
    return std::all_of(all.begin(), all.end(), [&](float one) {
      return exact ? one == value : std::abs(one / value - 1) < 1e-6f;
    });
  };
  for (const float value : {3e38f, -3e38f, exact ? 0x1p-140f : 0x1p-120f}) {
    CAPTURE(value);
    std::vector<float> memory(100, value);
    c->all_reduce(floats(memory), reduction::mean)->wait();
    CHECK(near(memory, value));
    std::vector<float> all(static_cast<std::size_t>(world) * 10, value);
    std::vector<float> mine(10);
    c->reduce_scatter(floats(all), floats(mine), reduction::mean)->wait();
    CHECK(near(mine, value));
    CHECK(all == std::vector<float>(static_cast<std::size_t>(world) * 10, value));
  }
}

TEST_CASE("broadcast and all_gather and reduce_scatter are correct in and out of place") {
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

TEST_CASE("decide computes AND or OR over the votes of all ranks and barriers complete") {
  const auto c = next_generation();
  for (int mask = 0; mask < 1 << world; ++mask) {
    const bool yes = (mask >> rank & 1) != 0;
    CHECK(c->decide(yes, decision::all) == (mask == (1 << world) - 1));
    CHECK(c->decide(yes, decision::any) == (mask != 0));
    c->barrier("mask " + std::to_string(mask))->wait();
  }
}

TEST_CASE("subgroups keep their own order and give the canonical bits") {
  const auto c = next_generation();
  if (world < 3) return;
  std::vector<subgroup> groups{{{0, 1}}, {{1, 2}}, {{0, 2}}};
  if (world > 3) groups.push_back({{0, 1, 2}});  // of the whole world MPI chooses the order
  // Each member goes through its groups in a different order.
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
  CHECK(c->decide(rank == 0, decision::any, pair));
  c->barrier("pairs")->wait();
}

TEST_CASE("five hundred operations in flight may be awaited in reverse order") {
  const auto c = next_generation();
  std::vector<std::vector<float>> memory(500, std::vector<float>(64, 1));
  std::vector<work_ptr> works;
  for (auto& one : memory) works.push_back(c->all_reduce(floats(one), reduction::sum));
  for (auto one = works.rbegin(); one != works.rend(); ++one) (*one)->wait();
  for (const auto& one : memory) CHECK(one == std::vector<float>(64, static_cast<float>(world)));
  CHECK(c->quiescent());
}

TEST_CASE("operations submitted without waiting may reuse the same memory in order") {
  const auto c = next_generation();
  for (const auto type : {dtype::i64, dtype::f16, dtype::f32}) {
    CAPTURE(to_string(type));
    auto leaves = leaves_of([&](std::int32_t of) { return small_numbers(type, 50000, of); }, world);
    auto memory = leaves[static_cast<std::size_t>(rank)];
    std::vector<work_ptr> works;
    for (int i = 0; i < 3; ++i) {
      works.push_back(c->all_reduce(whole(memory, type), reduction::sum));
      leaves.assign(leaves.size(), reference_reduction(type, reduction::sum, leaves));
    }
    for (const auto& work : works) work->wait();
    CHECK((memory == leaves[0]));
  }
  // All ranks hold the same values after the first mean, so the mean stays the same.
  std::vector<float> values(50000, static_cast<float>(rank * world));
  std::vector<work_ptr> works;
  for (int i = 0; i < 3; ++i) works.push_back(c->all_reduce(floats(values), reduction::mean));
  for (const auto& work : works) work->wait();
  const auto mean = static_cast<float>(world * (world - 1) / 2);
  CHECK((values == std::vector<float>(50000, mean)));
}

TEST_CASE("operations complete without a waiter") {
  const auto c = next_generation();
  std::vector<float> values(1 << 20, 1);
  const auto work = c->all_reduce(floats(values), reduction::sum);
  while (!c->quiescent()) std::this_thread::yield();
  CHECK(work->poll().status == work_status::ok);
  CHECK(values.back() == static_cast<float>(world));
}

}  // namespace
}  // namespace troupe::testing
