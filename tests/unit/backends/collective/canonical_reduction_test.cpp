// Goal: the canonical reduction gives the documented bits for every dtype, reduction and number of
// ranks, on every instruction set.
#include "backends/collective/canonical_reduction.hpp"

#include "tests/support/reference_reduction.hpp"

#include <xmmintrin.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

const std::vector<instruction_set> sets = {instruction_set::baseline, best_instruction_set()};

// Reduces in place: every leaf is a target.
std::vector<bytes> reduced(dtype type, reduction operation, std::vector<bytes> leaves,
                           instruction_set use = best_instruction_set()) {
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (auto& leaf : leaves) {
    sources.push_back(leaf.data());
    targets.push_back(leaf.data());
  }
  canonical_reduce(type, operation, sources, targets, leaves[0].size() / size_of(type), use);
  return leaves;
}

template <class T>
bytes of(std::initializer_list<T> values) {
  bytes result(values.size() * sizeof(T));
  std::memcpy(result.data(), std::data(values), result.size());
  return result;
}

TEST_CASE("the tree splits at the largest power of two below the count") {
  CHECK(canonical_split(2) == 1);
  CHECK(canonical_split(3) == 2);
  CHECK(canonical_split(4) == 2);
  CHECK(canonical_split(5) == 4);
  CHECK(canonical_split(7) == 4);
  CHECK(canonical_split(8) == 4);
  CHECK(canonical_split(9) == 8);
}

TEST_CASE("every dtype and reduction and instruction set gives the bits of plain recursion") {
  for (const std::size_t leaves : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 21})
    for (const std::size_t count : {1, 2, 31, 1500})
      for (const auto type : all_dtypes)
        for (const auto operation : all_reductions) {
          if (!refusal(type, operation).empty()) continue;
          std::vector<bytes> in;
          for (std::size_t i = 0; i < leaves; ++i)
            in.push_back(odd_values(type, count, static_cast<std::int32_t>(i), leaves));
          const auto expected = reference_reduction(type, operation, in);
          for (const auto use : sets) {
            CAPTURE(leaves, count, to_string(type), to_string(operation), static_cast<int>(use));
            for (const auto& result : reduced(type, operation, in, use))
              REQUIRE(result == expected);
          }
        }
}

TEST_CASE("every float16 and bfloat16 value survives a sum with -0 and NaN becomes canonical") {
  for (const auto type : {dtype::f16, dtype::bf16}) {
    bytes all(65536 * 2);
    bytes negative_zeros(all.size());
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const std::uint16_t zero = 0x8000;
      std::memcpy(&all[i * 2], &bits, 2);
      std::memcpy(&negative_zeros[i * 2], &zero, 2);
    }
    const std::uint32_t infinity = type == dtype::f16 ? 0x7c00 : 0x7f80;
    const std::uint32_t nan = type == dtype::f16 ? 0x7e00 : 0x7fc0;
    const auto sum = reduced(type, reduction::sum, {all, negative_zeros})[0];  // x + -0 is x
    for (std::uint32_t i = 0; i < 65536; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &sum[i * 2], 2);
      REQUIRE(bits == ((i & 0x7fff) > infinity ? nan : i));
    }
  }
}

TEST_CASE("float16 values accumulate in float32 and are rounded once") {
  const std::uint16_t sixty_thousand = 0x7b53;
  const std::uint16_t infinity = 0x7c00;
  const std::vector<bytes> two{of({sixty_thousand}), of({sixty_thousand})};
  CHECK(reduced(dtype::f16, reduction::sum, two)[0] == of({infinity}));
  CHECK(reduced(dtype::f16, reduction::mean, two)[0] == of({sixty_thousand}));
  // 2048 + 1 + 1: float16 cannot hold 2049, the partial result can.
  const std::uint16_t x2048 = 0x6800;
  const std::uint16_t x2050 = 0x6801;
  const std::uint16_t one = 0x3c00;
  CHECK(reduced(dtype::f16, reduction::sum, {of({x2048}), of({one}), of({one})})[0] == of({x2050}));
}

TEST_CASE("a mean overflows only if the mean itself is out of range") {
  constexpr float top = std::numeric_limits<float>::max();
  constexpr double wide_top = std::numeric_limits<double>::max();
  const auto small = of({top, -top, top, top});
  const auto other = of({top, -top, -top, std::numeric_limits<float>::infinity()});
  const auto expected = of({top, -top, 0.0f, std::numeric_limits<float>::infinity()});
  CHECK(reduced(dtype::f32, reduction::mean, {small, other})[1] == expected);
  CHECK(reduced(dtype::f32, reduction::mean, {small, other, small, other})[1] == expected);
  CHECK(reduced(dtype::f64, reduction::mean, {of({wide_top}), of({wide_top}), of({wide_top})})[2] ==
        of({wide_top}));
  CHECK(reduced(dtype::f32, reduction::mean, {of({1.0f}), of({1.0f}), of({1.0f})})[0] ==
        of({1.0f}));
}

TEST_CASE("integer sums wrap at their own size and bool results are 0 or 1") {
  const auto sum = [](auto a, auto b, dtype type) {
    return reduced(type, reduction::sum, {of({a}), of({b})})[0];
  };
  CHECK(sum(std::uint8_t{200}, std::uint8_t{200}, dtype::u8) == of({std::uint8_t{144}}));
  CHECK(sum(std::int8_t{100}, std::int8_t{100}, dtype::i8) == of({std::int8_t{-56}}));
  CHECK(sum(std::int64_t{1} << 62, std::int64_t{1} << 62, dtype::i64) ==
        of({std::numeric_limits<std::int64_t>::min()}));
  const auto a = of<std::uint8_t>({0, 2, 0, 255});
  const auto b = of<std::uint8_t>({0, 0, 1, 2});
  CHECK(reduced(dtype::boolean, reduction::sum, {a, b})[0] == of<std::uint8_t>({0, 1, 1, 1}));
  CHECK(reduced(dtype::boolean, reduction::max, {a, b})[0] == of<std::uint8_t>({0, 1, 1, 1}));
  CHECK(reduced(dtype::boolean, reduction::min, {a, b})[0] == of<std::uint8_t>({0, 0, 0, 1}));
}

TEST_CASE("NaN and the sign of zero do not depend on which rank holds them") {
  const float nan = std::bit_cast<float>(0xffc12345u);
  const float canonical = std::bit_cast<float>(0x7fc00000u);
  for (const auto operation : all_reductions) {
    CAPTURE(to_string(operation));
    CHECK(reduced(dtype::f32, operation, {of({nan}), of({1.0f})})[0] == of({canonical}));
    CHECK(reduced(dtype::f32, operation, {of({1.0f}), of({nan})})[1] == of({canonical}));
  }
  for (const auto& two : {std::vector{of({0.0f}), of({-0.0f})}, {of({-0.0f}), of({0.0f})}}) {
    CHECK(reduced(dtype::f32, reduction::min, two)[0] == of({-0.0f}));
    CHECK(reduced(dtype::f32, reduction::max, two)[0] == of({0.0f}));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(reduced(dtype::f32, reduction::sum, {of({infinity}), of({-infinity})})[0] ==
        of({canonical}));
}

TEST_CASE("a reduction of one leaf copies its bits") {
  const auto leaf = odd_values(dtype::f16, 999, 0, 3);
  bytes target(leaf.size());
  const std::vector<const void*> sources{leaf.data()};
  const std::vector<void*> targets{target.data()};
  canonical_reduce(dtype::f16, reduction::mean, sources, targets, 999);
  CHECK(target == leaf);
}

TEST_CASE("targets may be sources or separate memory and may be fewer than the sources") {
  for (const std::size_t leaves : {2, 3, 6}) {
    std::vector<bytes> in;
    std::vector<const void*> sources;
    for (std::size_t i = 0; i < leaves; ++i)
      in.push_back(odd_values(dtype::f64, 700, static_cast<std::int32_t>(i), 5));
    for (const auto& leaf : in) sources.push_back(leaf.data());
    const auto expected = reference_reduction(dtype::f64, reduction::sum, in);
    const auto before = in;
    bytes apart(expected.size());
    const std::vector<void*> targets{apart.data(), in[1].data()};
    canonical_reduce(dtype::f64, reduction::sum, sources, targets, 700);
    CHECK(apart == expected);
    CHECK(in[1] == expected);
    CHECK(in[0] == before[0]);
    in[1] = before[1];
    canonical_reduce(dtype::f64, reduction::sum, sources, std::vector<void*>{apart.data()}, 700);
    CHECK(apart == expected);
    CHECK(in == before);
  }
}

TEST_CASE("rounding and flush-to-zero modes of the thread change nothing and are kept") {
  const auto a = odd_values(dtype::f32, 5000, 0, 1);
  const auto b = odd_values(dtype::f32, 5000, 1, 1);
  const auto expected = reduced(dtype::f32, reduction::sum, {a, b});
  const auto before = _mm_getcsr();
  const unsigned odd = before | 0x8040u | 0x4000u;  // flush to zero both ways, round up
  _mm_setcsr(odd);
  const auto result = reduced(dtype::f32, reduction::sum, {a, b});
  const auto after = _mm_getcsr();
  _mm_setcsr(before);
  CHECK(result == expected);
  CHECK((after & 0xffc0u) == (odd & 0xffc0u));
}

TEST_CASE(
    "an undefined reduction is refused with a hint and canonical_reduce rejects it as internal") {
  CHECK(refusal(dtype::i32, reduction::mean) ==
        "int32 has no mean; use sum or convert it to a floating type");
  CHECK(refusal(dtype::boolean, reduction::mean) ==
        "bool has no mean; use min (and), max (or) or convert it to a number");
  CHECK(refusal(dtype::c64, reduction::max) ==
        "complex64 has no order, so no max; use sum, mean or product");
  std::size_t allowed = 0;
  for (const auto type : all_dtypes)
    for (const auto operation : all_reductions) allowed += refusal(type, operation).empty();
  CHECK(allowed == 5 * 4 + 4 * 5 + 3 + 2 * 3);
  bytes leaf(4);
  const std::vector<const void*> sources{leaf.data(), leaf.data()};
  const std::vector<void*> targets{leaf.data()};
  CHECK_THROWS_AS(canonical_reduce(dtype::i32, reduction::mean, sources, targets, 1),
                  internal_error);
  CHECK_THROWS_AS(canonical_reduce(dtype::i32, reduction::sum, {}, targets, 1), internal_error);
}

}  // namespace
}  // namespace troupe::testing
