#include "backends/collective/canonical_kernels.hpp"

#include "backends/collective/half_conversion.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>

// Compiled with -ffp-contract=off: a fused multiply-add would change bits between machines.
namespace troupe::detail {
namespace {

template <class A>
using bits_of = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;

// Which NaN an addition hands on depends on how the compiler ordered its operands.
template <class A>
inline A one_nan(A x) {
  return x != x ? std::numeric_limits<A>::quiet_NaN() : x;
}

// A choice without a branch, so that loops over it are vectorised.
inline std::uint32_t choose(bool first, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(first);
  return (a & mask) | (b & ~mask);
}

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t magnitude = (half & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;  // exact, subnormals included
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t bits = choose(magnitude >= 0x0f800000u, magnitude | 0x7f800000u, finite);
  return std::bit_cast<float>(bits | (half & 0x8000u) << 16);
}

inline std::uint16_t float_to_half(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 moves the bits of a subnormal half to the end of the mantissa, rounded.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t finite = choose(magnitude < 0x38800000u, subnormal, normal);
  const std::uint32_t number =
      choose(magnitude >= 0x47800000u, 0x7c00u, finite) | (bits >> 16 & 0x8000u);
  return static_cast<std::uint16_t>(choose(magnitude > 0x7f800000u, 0x7e00u, number));
}

inline float bfloat_to_float(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

inline std::uint16_t float_to_bfloat(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(choose((bits & 0x7fffffffu) > 0x7f800000u, 0x7fc0u, rounded));
}

// How elements are stored, what they accumulate in, and the way between the two.
template <class T>
struct real {
  using storage = T;
  using accumulator = T;
  static accumulator load(storage x) { return x; }
  static storage store(accumulator x) { return one_nan(x); }
};
struct half {
  using storage = std::uint16_t;
  using accumulator = float;
  static accumulator load(storage x) { return half_to_float(x); }
  static storage store(accumulator x) { return float_to_half(x); }
};
struct bfloat {
  using storage = std::uint16_t;
  using accumulator = float;
  static accumulator load(storage x) { return bfloat_to_float(x); }
  static storage store(accumulator x) { return float_to_bfloat(x); }
};
template <class T>
struct integer {
  using storage = T;
  using accumulator = T;
  static accumulator load(storage x) { return x; }
  static storage store(accumulator x) { return x; }
};
struct boolean {
  using storage = std::uint8_t;
  using accumulator = std::uint8_t;
  static accumulator load(storage x) { return x != 0; }
  static storage store(accumulator x) { return x; }
};
template <class T>
struct complex {
  using storage = std::complex<T>;
  using accumulator = std::complex<T>;
  static accumulator load(storage x) { return x; }
  static storage store(accumulator x) { return {one_nan(x.real()), one_nan(x.imag())}; }
};

// Unsigned and at least 32 bits wide: wraps without undefined behaviour.
template <class T>
using wrapping = std::make_unsigned_t<std::common_type_t<T, std::int32_t>>;

struct add {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>)
      return static_cast<A>(static_cast<wrapping<A>>(a) + static_cast<wrapping<A>>(b));
    else
      return a + b;
  }
};
struct multiply {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>)
      return static_cast<A>(static_cast<wrapping<A>>(a) * static_cast<wrapping<A>>(b));
    else
      return a * b;
  }
  template <class T>
  static std::complex<T> apply(std::complex<T> a, std::complex<T> b) {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  }
};
// Equal floats differ at most in the sign of zero: OR finds -0, AND finds +0.
struct least {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
      const A equal = std::bit_cast<A>(std::bit_cast<bits_of<A>>(a) | std::bit_cast<bits_of<A>>(b));
      const A ordered = a < b ? a : (b < a ? b : equal);
      const A sum = a + b;
      return (a != a) | (b != b) ? sum : ordered;
    } else {
      return b < a ? b : a;
    }
  }
};
struct greatest {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
      const A equal = std::bit_cast<A>(std::bit_cast<bits_of<A>>(a) & std::bit_cast<bits_of<A>>(b));
      const A ordered = a < b ? b : (b < a ? a : equal);
      const A sum = a + b;
      return (a != a) | (b != b) ? sum : ordered;
    } else {
      return a < b ? b : a;
    }
  }
};

// The bodies. Always inlined into the function that names the instruction set.
#define TROUPE_LOOP [[gnu::always_inline]] static inline

template <class Kind, class Operation>
struct loops {
  using storage = typename Kind::storage;
  using accumulator = typename Kind::accumulator;

  TROUPE_LOOP void leaves(const void* left, const void* right, void* partial, std::size_t n) {
    const auto* a = static_cast<const storage*>(left);
    const auto* b = static_cast<const storage*>(right);
    auto* out = static_cast<accumulator*>(partial);
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i)
      out[i] = Operation::apply(Kind::load(a[i]), Kind::load(b[i]));
  }
  TROUPE_LOOP void leaf(void* left_partial, const void* right, std::size_t n) {
    auto* a = static_cast<accumulator*>(left_partial);
    const auto* b = static_cast<const storage*>(right);
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) a[i] = Operation::apply(a[i], Kind::load(b[i]));
  }
  TROUPE_LOOP void partials(void* left_partial, const void* right_partial, std::size_t n) {
    auto* a = static_cast<accumulator*>(left_partial);
    const auto* b = static_cast<const accumulator*>(right_partial);
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) a[i] = Operation::apply(a[i], b[i]);
  }
  TROUPE_LOOP void store(const void* partial, void* target, std::size_t n) {
    const auto* a = static_cast<const accumulator*>(partial);
    auto* out = static_cast<storage*>(target);
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) out[i] = Kind::store(a[i]);
  }
  TROUPE_LOOP void pair(const void* left, const void* right, void* first, void* second,
                        std::size_t n) {
    const auto* a = static_cast<const storage*>(left);
    const auto* b = static_cast<const storage*>(right);
    auto* x = static_cast<storage*>(first);
    auto* y = static_cast<storage*>(second);
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i)
      x[i] = y[i] = Kind::store(Operation::apply(Kind::load(a[i]), Kind::load(b[i])));
  }
};

// The case that has to run at the speed of memory: the sum of two real leaves. Making every NaN
// canonical on its way costs a tenth, so a block is only watched for NaN and corrected after it.
template <class T>
struct watched_sum {
  using vector [[gnu::vector_size(32), gnu::aligned(alignof(T)), gnu::may_alias]] = T;
  static constexpr std::size_t width = sizeof(vector) / sizeof(T);
  static constexpr std::size_t block =
      16384 / sizeof(T);  // still in the first cache when it is corrected

  TROUPE_LOOP void pair(const void* left, const void* right, void* first, void* second,
                        std::size_t n) {
    const auto* a = static_cast<const T*>(left);
    const auto* b = static_cast<const T*>(right);
    auto* x = static_cast<T*>(first);
    auto* y = static_cast<T*>(second);
    for (std::size_t from = 0; from < n; from += block) {
      const auto to = n - from < block ? n : from + block;
      if (sum(a, b, x, y, from, to)) continue;
      for (auto i = from; i < to; ++i) x[i] = y[i] = one_nan(x[i]);
    }
  }

  // False if there is a NaN among the results, and seldom otherwise: a NaN, like infinities of both
  // signs, leaves one in the sum of all results. That is cheaper than to compare each.
  TROUPE_LOOP bool sum(const T* a, const T* b, T* x, T* y, std::size_t from, std::size_t to) {
    vector all_low{};
    vector all_high{};
    auto i = from;
    for (; i + 2 * width <= to; i += 2 * width) {
      const auto* left = reinterpret_cast<const vector*>(a + i);
      const auto* right = reinterpret_cast<const vector*>(b + i);
      const vector low = left[0] + right[0];
      const vector high = left[1] + right[1];
      for (auto* target : {reinterpret_cast<vector*>(y + i), reinterpret_cast<vector*>(x + i)}) {
        target[0] = low;
        target[1] = high;
      }
      all_low += low;
      all_high += high;
    }
    T all = 0;
    for (std::size_t k = 0; k < width; ++k) all += all_low[k] + all_high[k];
    for (; i < to; ++i) {
      x[i] = y[i] = a[i] + b[i];
      all += x[i];
    }
    return all == all;
  }
};

template <class Kind>
struct mean_loops {
  using storage = typename Kind::storage;
  using accumulator = typename Kind::accumulator;

  TROUPE_LOOP bool divide(void* partial, std::size_t n, std::size_t leaves) {
    auto* a = static_cast<accumulator*>(partial);
    const auto divisor = static_cast<accumulator>(leaves);
    bits_of<accumulator> odd = 0;
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) {
      odd |= std::fabs(a[i]) <= std::numeric_limits<accumulator>::max() ? 0u : 1u;
      a[i] = a[i] / divisor;
    }
    return odd == 0;
  }
  TROUPE_LOOP void pair(const void* left, const void* right, void* first, void* second,
                        std::size_t n) {
    const auto* a = static_cast<const storage*>(left);
    const auto* b = static_cast<const storage*>(right);
    auto* x = static_cast<storage*>(first);
    auto* y = static_cast<storage*>(second);
    constexpr accumulator by_two = accumulator{1} / 2;
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) {
      const accumulator p = Kind::load(a[i]);
      const accumulator q = Kind::load(b[i]);
      const accumulator sum = p + q;
      const accumulator whole = sum * by_two;
      const accumulator parts = p * by_two + q * by_two;
      const bool finite = std::fabs(sum) <= std::numeric_limits<accumulator>::max();
      x[i] = y[i] = Kind::store(finite ? whole : parts);
    }
  }
};

// Halving is exact, so the sum of leaves that were halved often enough fits where their mean does.
template <class Kind>
typename Kind::accumulator sum_of_parts(std::span<const void* const> leaves, std::size_t at,
                                        typename Kind::accumulator part) {
  if (leaves.size() == 1)
    return Kind::load(static_cast<const typename Kind::storage*>(leaves[0])[at]) * part;
  const auto split = canonical_split(leaves.size());
  return sum_of_parts<Kind>(leaves.first(split), at, part) +
         sum_of_parts<Kind>(leaves.subspan(split), at, part);
}

template <class Kind>
void rescue(std::span<const void* const> leaves, std::size_t first, void* partial, std::size_t n) {
  using accumulator = typename Kind::accumulator;
  auto* a = static_cast<accumulator*>(partial);
  const auto whole = static_cast<accumulator>(std::bit_ceil(leaves.size()));
  const auto divisor = static_cast<accumulator>(leaves.size());
  for (std::size_t i = 0; i < n; ++i)
    if (!std::isfinite(a[i]))
      a[i] = sum_of_parts<Kind>(leaves, first + i, 1 / whole) / divisor * whole;
}

#if defined(__x86_64__)
#define TROUPE_AVX2 [[gnu::target("avx2")]]
#else
#define TROUPE_AVX2
#endif

template <auto Body>
struct compiled;
template <class Result, class... Arguments, Result (*Body)(Arguments...)>
struct compiled<Body> {
  static Result baseline(Arguments... arguments) { return Body(arguments...); }
  TROUPE_AVX2 static Result avx2(Arguments... arguments) { return Body(arguments...); }
  static auto choose(instruction_set use) {
    return use == instruction_set::avx2 ? &avx2 : &baseline;
  }
};

// Halves where the processor converts them: by blocks that stay in the first cache, in float.
template <class Operation>
struct half_blocks {
  static constexpr std::size_t block = 512;
  using floats = compiled<&loops<real<float>, Operation>::partials>;

  static void leaf(void* left_partial, const void* right, std::size_t n) {
    auto* a = static_cast<float*>(left_partial);
    const auto* b = static_cast<const std::uint16_t*>(right);
    float wide[block];
    for (std::size_t i = 0; i < n; i += block) {
      const auto some = std::min(block, n - i);
      widen_halves(b + i, wide, some);
      floats::avx2(a + i, wide, some);
    }
  }
  static void leaves(const void* left, const void* right, void* partial, std::size_t n) {
    widen_halves(static_cast<const std::uint16_t*>(left), static_cast<float*>(partial), n);
    leaf(partial, right, n);
  }
  static void store(const void* partial, void* target, std::size_t n) {
    narrow_to_halves(static_cast<const float*>(partial), static_cast<std::uint16_t*>(target), n);
  }
  static void pair(const void* left, const void* right, void* first, void* second, std::size_t n) {
    const auto* a = static_cast<const std::uint16_t*>(left);
    const auto* b = static_cast<const std::uint16_t*>(right);
    auto* x = static_cast<std::uint16_t*>(first);
    auto* y = static_cast<std::uint16_t*>(second);
    float wide[block];
    for (std::size_t i = 0; i < n; i += block) {
      const auto some = std::min(block, n - i);
      leaves(a + i, b + i, wide, some);
      store(wide, x + i, some);
      if (x != y) std::copy_n(x + i, some, y + i);
    }
  }
};

template <class Kind, class Operation>
canonical_kernels table(instruction_set use) {
  using body = loops<Kind, Operation>;
  using accumulator = typename Kind::accumulator;
  canonical_kernels k;
  k.element = sizeof(typename Kind::storage);
  k.accumulator = sizeof(accumulator);
  k.leaves = compiled<&body::leaves>::choose(use);
  k.leaf = compiled<&body::leaf>::choose(use);
  k.partials = compiled<&body::partials>::choose(use);
  k.store = compiled<&body::store>::choose(use);
  if constexpr (std::is_same_v<Kind, real<accumulator>> && std::is_same_v<Operation, add>)
    k.pair = compiled<&watched_sum<accumulator>::pair>::choose(use);
  else
    k.pair = compiled<&body::pair>::choose(use);
  if constexpr (std::is_same_v<Kind, half>) {
    if (use != instruction_set::avx2 || !converts_halves()) return k;
    using blocks = half_blocks<Operation>;
    k.leaves = &blocks::leaves, k.leaf = &blocks::leaf;
    k.store = &blocks::store, k.pair = &blocks::pair;
  }
  return k;
}

template <class Kind>
canonical_kernels mean_table(instruction_set use) {
  auto k = table<Kind, add>(use);
  k.pair = compiled<&mean_loops<Kind>::pair>::choose(use);
  k.divide = compiled<&mean_loops<Kind>::divide>::choose(use);
  k.rescue = &rescue<Kind>;
  return k;
}

template <class Kind>
canonical_kernels ordered(reduction operation, instruction_set use) {
  switch (operation) {
    case reduction::sum: return table<Kind, add>(use);
    case reduction::min: return table<Kind, least>(use);
    case reduction::max: return table<Kind, greatest>(use);
    case reduction::product: return table<Kind, multiply>(use);
    case reduction::mean: break;
  }
  if constexpr (std::is_floating_point_v<typename Kind::accumulator>) return mean_table<Kind>(use);
  throw internal_error("canonical_reduce: no kernel for this mean");
}

template <class T>
canonical_kernels complex_table(reduction operation, instruction_set use) {
  if (operation == reduction::product) return table<complex<T>, multiply>(use);
  auto k = ordered<real<T>>(operation, use);
  k.per_count = 2;
  return k;
}

}  // namespace

canonical_kernels kernels_of(dtype type, reduction operation, instruction_set use) {
  switch (type) {
    case dtype::u8: return ordered<integer<std::uint8_t>>(operation, use);
    case dtype::i8: return ordered<integer<std::int8_t>>(operation, use);
    case dtype::i16: return ordered<integer<std::int16_t>>(operation, use);
    case dtype::i32: return ordered<integer<std::int32_t>>(operation, use);
    case dtype::i64: return ordered<integer<std::int64_t>>(operation, use);
    case dtype::f16: return ordered<half>(operation, use);
    case dtype::bf16: return ordered<bfloat>(operation, use);
    case dtype::f32: return ordered<real<float>>(operation, use);
    case dtype::f64: return ordered<real<double>>(operation, use);
    case dtype::boolean:
      return operation == reduction::min ? table<boolean, least>(use)
                                         : table<boolean, greatest>(use);
    case dtype::c64: return complex_table<float>(operation, use);
    case dtype::c128: return complex_table<double>(operation, use);
  }
  throw internal_error("canonical_reduce: unknown dtype");
}

}  // namespace troupe::detail
