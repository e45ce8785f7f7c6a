#include "backends/collective/canonical_reduction.hpp"

#include "backends/collective/canonical_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace troupe {

namespace {

using detail::canonical_kernels;

constexpr std::size_t partial_bytes = 4096;  // of one level of the tree: stays in the first cache
constexpr std::size_t levels_max = 20;       // a million leaves
constexpr std::size_t alignment = 64;

struct alignas(alignment) scratch {
  std::array<std::byte, partial_bytes * levels_max> bytes;
};

// Rounding and flush-to-zero belong to the thread that happens to do the work; results must not.
// Nor does that thread see afterwards what was inexact here. The register is written only where it
// has to change: writing it takes as long as adding a kilobyte.
class default_arithmetic {
public:
#if defined(__x86_64__)
  default_arithmetic() : before_(_mm_getcsr()) {
    constexpr unsigned usual = 0x1f80;
    constexpr unsigned raised = 0x3f;  // flags
    if ((before_ & ~raised) != usual) _mm_setcsr(usual | (before_ & raised));
  }
  ~default_arithmetic() {
    if (_mm_getcsr() != before_) _mm_setcsr(before_);
  }

private:
  unsigned before_;
#else
  default_arithmetic() {}
#endif
public:
  default_arithmetic(const default_arithmetic&) = delete;
  default_arithmetic& operator=(const default_arithmetic&) = delete;
};

const void* at(const void* memory, std::size_t bytes) {
  return static_cast<const std::byte*>(memory) + bytes;
}
void* at(void* memory, std::size_t bytes) { return static_cast<std::byte*>(memory) + bytes; }

// The tree over two leaves or more, elements first .. first + n: the result is left in `partial`.
void evaluate(const canonical_kernels& k, std::span<const void* const> leaves, std::size_t first,
              std::size_t n, std::byte* partial) {
  const auto offset = first * k.element;
  if (leaves.size() == 2) return k.leaves(at(leaves[0], offset), at(leaves[1], offset), partial, n);
  const auto split = canonical_split(leaves.size());
  const auto right = leaves.subspan(split);
  evaluate(k, leaves.first(split), first, n, partial);
  if (right.size() == 1) return k.leaf(partial, at(right[0], offset), n);
  evaluate(k, right, first, n, partial + partial_bytes);
  k.partials(partial, partial + partial_bytes, n);
}

void reduce_blocks(const canonical_kernels& k, std::span<const void* const> sources,
                   std::span<void* const> targets, std::size_t count) {
  scratch space;
  auto* partial = space.bytes.data();
  const auto block = partial_bytes / k.accumulator;
  for (std::size_t first = 0; first < count; first += block) {
    const auto n = std::min(block, count - first);
    evaluate(k, sources, first, n, partial);
    if (k.divide && !k.divide(partial, n, sources.size())) k.rescue(sources, first, partial, n);
    const auto* result = at(static_cast<const void*>(targets[0]), first * k.element);
    k.store(partial, at(targets[0], first * k.element), n);
    for (auto* target : targets.subspan(1))
      if (target != targets[0]) std::memcpy(at(target, first * k.element), result, n * k.element);
  }
}

}  // namespace

std::string refusal(dtype type, reduction operation) {
  if (operation > reduction::product) return "there is no such reduction";
  const bool complex = type == dtype::c64 || type == dtype::c128;
  const bool floating = complex || type == dtype::f16 || type == dtype::bf16 ||
                        type == dtype::f32 || type == dtype::f64;
  if (type == dtype::boolean && (operation == reduction::mean || operation == reduction::product))
    return fmt::format("bool has no {}; use min (and), max (or) or convert it to a number",
                       to_string(operation));
  if (!floating && operation == reduction::mean)
    return fmt::format("{} has no mean; use sum or convert it to a floating type", to_string(type));
  if (complex && (operation == reduction::min || operation == reduction::max))
    return fmt::format("{} has no order, so no {}; use sum, mean or product", to_string(type),
                       to_string(operation));
  return {};
}

instruction_set best_instruction_set() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") ? instruction_set::avx2 : instruction_set::baseline;
#else
  return instruction_set::baseline;
#endif
}

void canonical_reduce(dtype type, reduction operation, std::span<const void* const> sources,
                      std::span<void* const> targets, std::size_t count, instruction_set use) {
  if (auto why = refusal(type, operation); !why.empty()) throw internal_error(std::move(why));
  if (sources.empty()) throw internal_error("canonical_reduce: nothing to reduce");
  if (sources.size() > std::size_t{1} << (levels_max - 1))
    throw internal_error("canonical_reduce: more leaves than the tree has room for");
  if (count == 0 || targets.empty()) return;
  if (sources.size() == 1) {
    for (auto* target : targets)
      if (target != sources[0]) std::memcpy(target, sources[0], count * size_of(type));
    return;
  }
  const default_arithmetic scope;
  const auto k = detail::kernels_of(type, operation, use);
  const auto elements = count * k.per_count;
  if (sources.size() == 2 && targets.size() <= 2)
    return k.pair(sources[0], sources[1], targets.front(), targets.back(), elements);
  reduce_blocks(k, sources, targets, elements);
}

}  // namespace troupe
