// The arithmetic of the integer payload, shared by learners and their reference.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backends/simulated/modular_learner.hpp"

namespace troupe::modular {

inline constexpr std::uint64_t prime = (std::uint64_t{1} << 61) - 1;
__extension__ using wide = unsigned __int128;

/// Any 64 bits modulo `prime`: 2^61 is congruent to 1.
constexpr std::uint64_t reduced(std::uint64_t x) {
  const auto s = (x & prime) + (x >> 61);
  return s >= prime ? s - prime : s;
}

/// These functions take numbers below `prime`.
constexpr std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  const auto s = a + b;
  return s >= prime ? s - prime : s;
}
constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<wide>(a) * b;
  const auto s =
      static_cast<std::uint64_t>(product & prime) + static_cast<std::uint64_t>(product >> 61);
  return s >= prime ? s - prime : s;
}
constexpr std::uint64_t power(std::uint64_t a, std::uint64_t e) {
  std::uint64_t r = 1;
  for (; e > 0; e >>= 1, a = multiply(a, a))
    if (e & 1) r = multiply(r, a);
  return r;
}
/// Any 64 bits as an element.
constexpr std::uint64_t element(std::uint64_t x) { return reduced(x >> 3); }

/// Computes inverses and caches them: a job has few divisors.
class inverses {
public:
  std::uint64_t of(std::uint64_t n) {
    for (const auto& [key, known] : known_)
      if (key == n) return known;
    return known_.emplace_back(n, power(reduced(n), prime - 2)).second;
  }

private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> known_;
};

/// Splits an element into two limbs whose sums over 2^31 ranks fit into 64 signed bits, and joins a
/// sum of limbs.
constexpr void split(std::uint64_t x, std::int64_t* limbs) {
  limbs[0] = static_cast<std::int64_t>(x & 0xffffffff);
  limbs[1] = static_cast<std::int64_t>(x >> 32);
}
constexpr std::uint64_t join(const std::int64_t* limbs) {
  const auto high = reduced(static_cast<std::uint64_t>(limbs[1]));
  const auto turned = (high << 32 & prime) | high >> 29;  // times 2^32: rotates 61 bits
  return add(turned, reduced(static_cast<std::uint64_t>(limbs[0])));
}

/// Added to a high limb, marks it as NaN. The mark survives a sum over up to 2^14 ranks, and never
/// appears by itself.
inline constexpr std::int64_t nan_limb = std::int64_t{1} << 48;

modular_state initial(std::size_t width, std::uint64_t seed);
std::uint64_t noise_key(std::uint64_t seed, std::int64_t epoch, std::int64_t batch,
                        std::int64_t rank);
/// Adds the gradients of one rank's samples of one micro-batch, and its noise.
void add_piece(std::vector<std::uint64_t>& gradient, const std::vector<std::uint64_t>& weights,
               const std::vector<std::int64_t>& order, piece of, std::uint64_t noise);
std::uint64_t statistic_of(const std::vector<std::int64_t>& order, piece of);
std::uint64_t next_statistic(std::uint64_t now, std::uint64_t of_step);
/// One step: the mean of `gradient` over `samples`, momentum, weights.
void update(modular_state& state, const std::vector<std::uint64_t>& gradient, std::uint64_t samples,
            inverses& divisors);

}  // namespace troupe::modular
