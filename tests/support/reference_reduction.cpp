#include "tests/support/reference_reduction.hpp"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace troupe::testing {

namespace {

// bfloat16 as the standard library would have it, rounded by comparing the neighbours.
struct brain {
  std::uint16_t bits;
  brain() = default;
  explicit brain(float x) {
    std::uint32_t wide = 0;
    std::memcpy(&wide, &x, 4);
    bits = static_cast<std::uint16_t>(wide >> 16);
    if (std::isnan(x)) bits = 0x7fc0;
    if (!std::isfinite(x)) return;
    const auto rest = wide & 0xffffu;
    if (rest > 0x8000u || (rest == 0x8000u && (bits & 1) != 0)) ++bits;
  }
  explicit operator float() const {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float x = 0;
    std::memcpy(&x, &wide, 4);
    return x;
  }
};

template <class T>
constexpr bool small_float = std::is_same_v<T, _Float16> || std::is_same_v<T, brain>;
template <class T>
using accumulator = std::conditional_t<small_float<T>, float, T>;

template <class A>
A combine(reduction operation, A a, A b) {
  if constexpr (std::is_same_v<A, std::complex<float>> || std::is_same_v<A, std::complex<double>>) {
    if (operation != reduction::product) return a + b;
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else if constexpr (std::is_same_v<A, bool>) {
    return operation == reduction::min ? a && b : a || b;
  } else if constexpr (std::is_integral_v<A>) {
    A result{};
    if (operation == reduction::sum) __builtin_add_overflow(a, b, &result);
    if (operation == reduction::product) __builtin_mul_overflow(a, b, &result);
    if (operation == reduction::min) result = a < b ? a : b;
    if (operation == reduction::max) result = a > b ? a : b;
    return result;
  } else {
    if (operation == reduction::product) return a * b;
    if (operation == reduction::sum || operation == reduction::mean) return a + b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<A>::quiet_NaN();
    if (a == b) return std::signbit(a) == (operation == reduction::min) ? a : b;
    return (a < b) == (operation == reduction::min) ? a : b;
  }
}

template <class Leaf>
auto tree(reduction operation, const Leaf& leaf, std::size_t from, std::size_t to)
    -> decltype(leaf(from)) {
  if (to - from == 1) return leaf(from);
  std::size_t left = 1;
  while (left * 2 < to - from) left *= 2;
  return combine(operation, tree(operation, leaf, from, from + left),
                 tree(operation, leaf, from + left, to));
}
template <class A>
A tree(reduction operation, const std::vector<A>& leaves) {
  return tree(
      operation, [&](std::size_t i) -> A { return leaves[i]; }, 0, leaves.size());
}

template <class A>
bool finite(const A& x) {
  return std::isfinite(x);
}

template <class A>
A mean(const std::vector<A>& leaves) {
  const auto n = static_cast<A>(leaves.size());
  const A sum = tree(reduction::sum, leaves);
  if (finite(sum)) return sum / n;
  A scale = 1;
  while (scale < n) scale *= 2;
  const auto smaller = [&](std::size_t i) -> A { return leaves[i] / scale; };
  return tree(reduction::sum, smaller, 0, leaves.size()) / n * scale;
}
template <class T>
std::complex<T> mean(const std::vector<std::complex<T>>& leaves) {
  std::vector<T> real;
  std::vector<T> imaginary;
  for (const auto& leaf : leaves) {
    real.push_back(leaf.real());
    imaginary.push_back(leaf.imag());
  }
  return {mean(real), mean(imaginary)};
}

template <class A>
A one_nan(A x) {
  if constexpr (std::is_floating_point_v<A>)
    return std::isnan(x) ? std::numeric_limits<A>::quiet_NaN() : x;
  else
    return x;
}
template <class T>
std::complex<T> one_nan(std::complex<T> x) {
  return {one_nan(x.real()), one_nan(x.imag())};
}

template <class T>
bytes reduce(reduction operation, const std::vector<bytes>& leaves) {
  using A = accumulator<T>;
  bytes result(leaves[0].size());
  // of one element: allocated once, because allocation is slow under sanitizers
  std::vector<A> values;
  for (std::size_t at = 0; at < result.size(); at += sizeof(T)) {
    values.clear();
    for (const auto& leaf : leaves) {
      std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T> x;
      std::memcpy(&x, &leaf[at], sizeof x);
      values.push_back(static_cast<A>(x));
    }
    A value{};
    if constexpr (std::is_floating_point_v<A> || !std::is_arithmetic_v<A>)
      value = operation == reduction::mean ? mean(values) : tree(operation, values);
    else
      value = tree(operation, values);
    const T rounded = static_cast<T>(one_nan(value));
    std::memcpy(&result[at], &rounded, sizeof rounded);
  }
  return result;
}

std::uint64_t mixed(std::uint64_t x) {  // splitmix64's finaliser
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A floating-point number with these mantissa and exponent widths, from all ranges of the format.
std::uint64_t odd_float(std::uint64_t random, int mantissa, int exponent) {
  const std::uint64_t sign = (random & 1) << (mantissa + exponent);
  const std::uint64_t all = ((std::uint64_t{1} << exponent) - 1) << mantissa;
  const std::uint64_t fraction = (random >> 8) & ((std::uint64_t{1} << mantissa) - 1);
  const std::uint64_t bias = all >> 1 & all;
  switch ((random >> 1) % 12) {
    case 0: return sign;                                                          // zero
    case 1: return sign | all;                                                    // infinity
    case 2: return sign | all | fraction | 1;                                     // NaN of any kind
    case 3: return sign | fraction;                                               // subnormal
    case 4: return sign | (all - 1);                                              // the largest
    case 5: return sign | ((random >> 8) & (all | fraction)) % all;               // any finite
    default: return sign | (bias + ((random >> 60) % 4 << mantissa)) | fraction;  // near one
  }
}

}  // namespace

bytes reference_reduction(dtype type, reduction operation, const std::vector<bytes>& leaves) {
  if (leaves.size() == 1) return leaves[0];
  switch (type) {
    case dtype::u8: return reduce<std::uint8_t>(operation, leaves);
    case dtype::i8: return reduce<std::int8_t>(operation, leaves);
    case dtype::i16: return reduce<std::int16_t>(operation, leaves);
    case dtype::i32: return reduce<std::int32_t>(operation, leaves);
    case dtype::i64: return reduce<std::int64_t>(operation, leaves);
    case dtype::f16: return reduce<_Float16>(operation, leaves);
    case dtype::bf16: return reduce<brain>(operation, leaves);
    case dtype::f32: return reduce<float>(operation, leaves);
    case dtype::f64: return reduce<double>(operation, leaves);
    case dtype::boolean: return reduce<bool>(operation, leaves);
    case dtype::c64: return reduce<std::complex<float>>(operation, leaves);
    case dtype::c128: return reduce<std::complex<double>>(operation, leaves);
  }
  throw std::logic_error("reference_reduction: unknown dtype");
}

bytes odd_values(dtype type, std::size_t count, std::int32_t rank, std::uint64_t seed) {
  const bool complex = type == dtype::c64 || type == dtype::c128;
  const std::size_t element = complex ? size_of(type) / 2 : size_of(type);
  bytes result(count * size_of(type));
  for (std::size_t i = 0; i < result.size() / element; ++i) {
    auto bits = mixed(mixed(seed * 1000003 + static_cast<std::uint64_t>(rank)) + i);
    if (type == dtype::f16) bits = odd_float(bits, 10, 5);
    if (type == dtype::bf16) bits = odd_float(bits, 7, 8);
    if (type == dtype::f32 || type == dtype::c64) bits = odd_float(bits, 23, 8);
    if (type == dtype::f64 || type == dtype::c128) bits = odd_float(bits, 52, 11);
    if (type == dtype::boolean) bits = bits % 3;  // 2 is as true as 1
    std::memcpy(&result[i * element], &bits, element);
  }
  return result;
}

}  // namespace troupe::testing
